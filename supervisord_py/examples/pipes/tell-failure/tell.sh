#!/bin/sh
# Say that a pipe has failed: a note on the desktop where there is one, else a line in the system's log. POSIX shell.
#
# The line "Trigger: {...}" of the prompt, which comes on stdin, is JSON: which pipe, which execution, and why.
set -eu

facts=$(sed -n 's/^Trigger: //p;/^$/q')
if [ -z "$facts" ]; then
    echo 'nothing has failed: this pipe is started by failures of others' >&2
    exit 1
fi
# The text of one member, as far as its first quote: enough for names and ids, and a beginning of sentences.
member() {
    printf '%s\n' "$facts" | sed -n "s/.*\"$1\": \"\{0,1\}\([^\",}]*\).*/\1/p"
}

event=$(member event)
said="pipe:${event#*:} failed: $(member error_type) (execution $(member execution))"
if [ -n "${DBUS_SESSION_BUS_ADDRESS:-}" ] && command -v notify-send >/dev/null; then
    notify-send -- "$said" || :
elif command -v logger >/dev/null; then
    logger -t pxd -- "$said" || :
fi
echo "$said"
