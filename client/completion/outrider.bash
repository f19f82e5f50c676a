# bash completion for the programs of Outrider, except outriderctl. Commands, options and their values come from --help, which
# prints the programs' own tables.

# The words that begin the lines of a list of commands.
_outrider_commands()
{
	"$@" --help 2>/dev/null | sed -n 's/^  \([a-z][a-z]*\)  *[^ ].*/\1/p'
}

# Subcommands of a command: the words behind it in its usage.
_outrider_verbs()
{
	"$@" --help 2>/dev/null | sed -n "s/^\(usage:\)\{0,1\} *${*##*/} \([a-z][a-z]*\) .*/\2/p"
}

# The value an option takes, as --help names it (FILE, text|json); nothing for a flag. $1: the help, $2: the option.
_outrider_value()
{
	grep -o -e "$2 [^] ,][^] ,]*" <<<"$1" | sed 's/^[^ ]* //' | grep -m1 -e '^[A-Z0-9]' -e '.|.'
}

# The options that the help $1 lists.
_outrider_options()
{
	grep -o -e '^  -.*' -e '\[--[a-z][a-z0-9-]*' <<<"$1" | sed 's/^  \(-*[^ ].*[^ ]\)   *[^ ].*/\1/' |
		grep -o -e '--[a-z][a-z0-9-]*'
	[[ $1 == *"--json is --format json"* ]] && echo --json
	echo --help
}

_outrider_complete()
{
	mapfile -t COMPREPLY < <(compgen "$@")
}

_outrider()
{
	local program=$1 word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} at=1 help value
	local -a command=("$program")
	COMPREPLY=()
	# "--format=json" is three words to bash.
	if [[ $word == "=" ]]; then
		word=""
	elif [[ $before == "=" ]]; then
		before=${COMP_WORDS[COMP_CWORD - 2]}
	fi
	# `help run` completes a command too.
	[[ ${COMP_WORDS[1]} == help ]] && at=2
	# The daemons have no commands.
	case $program in
	*-verifier | *-drafter | *-expert-cache | *-policy | *-gateway) at=0 ;;
	esac
	if ((COMP_CWORD <= at)); then
		[[ $word == -* ]] && _outrider_complete -W "--help --version" -- "$word" && return
		_outrider_complete -W "$( ((at == 1)) && echo help) $(_outrider_commands "$program")" -- "$word"
		return
	fi
	((at == 2)) && return
	((at == 1)) && command+=("${COMP_WORDS[1]}")
	# Some commands have subcommands.
	((at == 1)) && value=$(_outrider_verbs "${command[@]}") || value=""
	if [[ -n $value ]]; then
		if ((COMP_CWORD == 2)); then
			_outrider_complete -W "$value --help" -- "$word"
			return
		fi
		command+=("${COMP_WORDS[2]}")
	fi
	help=$("${command[@]}" --help 2>/dev/null)
	[[ $before == --* ]] && value=$(_outrider_value "$help" "$before") || value=""
	case $value in
	*FILE* | OUT | TRACE) _outrider_complete -f -- "$word" ;;
	DIR) _outrider_complete -d -- "$word" ;;
	*"|"*) _outrider_complete -W "${value//|/ }" -- "$word" ;;
	?*) ;;
	*)
		if [[ $word == -* ]]; then
			_outrider_complete -W "$(_outrider_options "$help" | sort -u)" -- "$word"
		else
			_outrider_complete -f -- "$word"
		fi
		;;
	esac
	return 0
}
complete -o filenames -F _outrider outrider outrider-model outrider-bench outrider-verifier outrider-drafter outrider-expert-cache \
	outrider-policy outrider-gateway
