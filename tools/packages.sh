#!/bin/sh
# Install the named Debian packages that are not installed yet; prints nothing and asks nothing if all are installed.
set -eu
missing=
for package in "$@"; do
	case $(dpkg-query -W -f='${db:Status-Abbrev}' "$package" 2>/dev/null) in
	ii*) ;;
	*) missing="$missing $package" ;;
	esac
done
[ -n "$missing" ] || exit 0
sudo=
if [ "$(id -u)" -ne 0 ]; then
	command -v sudo >/dev/null || {
		echo "packages: not root and no sudo; as root run: apt-get install$missing" >&2
		exit 77
	}
	sudo=sudo
fi
echo "packages: installing$missing"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
export DEBIAN_FRONTEND=noninteractive
# Update only when the lists do not know a package: keeps repeated runs offline.
# shellcheck disable=SC2086
if ! { $sudo apt-get install -y --no-install-recommends $missing ||
	{ $sudo apt-get update && $sudo apt-get install -y --no-install-recommends $missing; }; } >"$log" 2>&1; then
	tail -n 20 "$log" >&2
	echo "packages: could not install:$missing" >&2
	exit 69
fi
