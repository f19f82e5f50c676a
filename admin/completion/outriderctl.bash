# bash completion for outriderctl. Commands and options come from its --help, knobs and their values from `outriderctl knob
# complete`, which asks the running processes and knows the allowed values of the others.

_outriderctl_commands()
{
	outriderctl --help 2>/dev/null | sed -n 's/^  \([a-z][a-z]*\)\( \([a-z][a-z]*\)\)\{0,1\} .*/\1 \3/p'
}

# The options of the command that the words name; without a command, those of all commands.
_outriderctl_options()
{
	outriderctl help "$@" 2>/dev/null | sed -n 's/^  \(--[a-z-]*\).*/\1/p'
	echo --help
}

# The sessions that the verifier knows, by their names.
_outriderctl_sessions()
{
	outriderctl sessions 2>/dev/null | sed -n 's/^\([a-z-]*\)  *\(queued\|prefill\|running\|asleep\|done\) .*/\1/p'
}

# The words before the cursor without options and their arguments; a knob, '=' and its value are one word to outriderctl
# and three to bash.
_outriderctl_words()
{
	local i
	_outriderctl_command=()
	for ((i = 1; i < COMP_CWORD; i++)); do
		case ${COMP_WORDS[i]} in
		--runtime-dir | --format | --session | --for | --if | --last) ((i++)) ;;
		-*) ;;
		*) _outriderctl_command+=("${COMP_WORDS[i]}") ;;
		esac
	done
	# `help knob set` completes like `knob set`.
	[[ ${_outriderctl_command[0]-} == help ]] && _outriderctl_command=("${_outriderctl_command[@]:1}")
	return 0
}

_outriderctl()
{
	local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} prefix="" candidates
	local -a _outriderctl_command
	COMPREPLY=()
	case $before in
	--format)
		mapfile -t COMPREPLY < <(compgen -W "text json" -- "$word")
		return
		;;
	--runtime-dir)
		mapfile -t COMPREPLY < <(compgen -d -- "$word")
		return
		;;
	--session)
		mapfile -t COMPREPLY < <(compgen -W "$(_outriderctl_sessions)" -- "$word")
		return
		;;
	--for | --if | --last) return ;;
	esac
	_outriderctl_words
	local command="${_outriderctl_command[*]:0:2}"
	if [[ $word == -* ]]; then
		candidates=$(_outriderctl_options "${_outriderctl_command[@]:0:2}" | sort -u)
		mapfile -t COMPREPLY < <(compgen -W "$candidates" -- "$word")
		return
	fi
	if ((${#_outriderctl_command[@]} == 0)); then
		candidates="help $(_outriderctl_commands | cut -d' ' -f1 | sort -u)"
		mapfile -t COMPREPLY < <(compgen -W "$candidates" -- "$word")
		return
	fi
	if ((${#_outriderctl_command[@]} == 1)); then
		candidates=$(_outriderctl_commands | sed -n "s/^$command //p")
		mapfile -t COMPREPLY < <(compgen -W "$candidates" -- "$word")
		return
	fi
	# "method", "=", "n" stands for "method=n"; bash replaces the last word of it.
	if [[ $word == "=" ]]; then
		prefix=$before=
		word=""
	elif [[ $before == "=" ]]; then
		prefix=${COMP_WORDS[COMP_CWORD - 2]}=
	fi
	local space=""
	case $command in
	policy\ explain | policy\ plot | session\ sleep | session\ wake)
		((${#_outriderctl_command[@]} == 2)) && mapfile -t COMPREPLY < <(compgen -W "$(_outriderctl_sessions)" -- "$word")
		[[ $command == policy\ plot ]] && mapfile -t -O ${#COMPREPLY[@]} COMPREPLY < <(compgen -f -- "$word")
		return 0
		;;
	policy\ set) space=policy. ;;
	cache\ set) space=expert-cache. ;;
	esac
	case $command in
	knob\ set | policy\ set | cache\ set)
		mapfile -t COMPREPLY < <(outriderctl knob complete set -- "$space$prefix$word" 2>/dev/null)
		;;
	knob\ get | knob\ reset)
		mapfile -t COMPREPLY < <(outriderctl knob complete name -- "$word" 2>/dev/null)
		;;
	knob\ list | knob\ history)
		mapfile -t COMPREPLY < <(outriderctl knob complete any -- "$word" 2>/dev/null)
		;;
	esac
	# A policy can also be given by its name alone.
	if [[ $command == policy\ set && -z $prefix ]]; then
		mapfile -t -O ${#COMPREPLY[@]} COMPREPLY \
			< <(outriderctl knob complete set -- "policy.policy=$word" 2>/dev/null | sed 's/^policy\.policy=//')
	fi
	COMPREPLY=("${COMPREPLY[@]#"$space"}")
	COMPREPLY=("${COMPREPLY[@]#"$prefix"}")
	# The value follows without a space.
	[[ ${#COMPREPLY[@]} -gt 0 && ${COMPREPLY[0]} == *[=:] ]] && compopt -o nospace 2>/dev/null
	return 0
}
complete -F _outriderctl outriderctl
