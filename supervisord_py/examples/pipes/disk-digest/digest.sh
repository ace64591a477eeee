#!/bin/sh
# Free space, the largest entries of some folders, and what grew since the last run. POSIX shell, no network.
#
# An agent of `agent: command` reads the prompt on stdin, works in the folder of its pipe.md, writes its files into the
# output directory that the prompt names, says on stdout what it did, and tells by its exit code whether it could.
set -eu
LC_ALL=C
export LC_ALL

range='' output='' folders='' most=10
while IFS= read -r line || [ -n "$line" ]; do
    case $line in
        'Time range: '*) range=${line#'Time range: '} ;;
        'Output directory: '*)
            output=${line#'Output directory: '}
            output=${output%/} ;;
        '- '*)
            folders="$folders${line#- }
" ;;
        'Show the '[0-9]*)
            most=${line#'Show the '}
            most=${most%%[!0-9]*} ;;
    esac
done
if [ -z "$output" ]; then
    echo 'the prompt names no output directory' >&2
    exit 1
fi
if [ -z "$folders" ]; then
    echo 'the prompt lists no folders: write lines of "- PATH" into pipe.md' >&2
    exit 1
fi
mkdir -p "$output"
report=$output/report.md
sizes=$output/sizes.txt
before=last-sizes.txt # in the pipe's folder: it outlives the runs
tab=$(printf '\t')

# Kibibytes, a tab and a path for each entry of a folder, the largest first. What may not be read is passed over.
entries() {
    for entry in "$1"/* "$1"/.[!.]*; do
        [ -e "$entry" ] || continue
        [ -L "$entry" ] || du -skx "$entry" 2>/dev/null || :
    done | sort -rn
}

in_words() {
    awk -F "$tab" -v most="$most" '
        function words(kib) {
            if (kib >= 1048576) return sprintf("%.1f GiB", kib / 1048576)
            if (kib >= 1024) return sprintf("%.1f MiB", kib / 1024)
            return kib " KiB"
        }
        phase == "before" { was[$2] = $1; known = 1; next }
        FNR <= most {
            grown = ""
            if (known && !($2 in was)) grown = ", new"
            else if (known && $1 > was[$2]) grown = ", grew by " words($1 - was[$2])
            else if (known && $1 < was[$2]) grown = ", shrank by " words(was[$2] - $1)
            print "- " words($1) "  " $2 grown
        }' "$@"
}

: >"$sizes"
looked=0
{
    echo '# Disk digest'
    echo
    echo "Run: $(date -u +%Y-%m-%dT%H:%M:%SZ). Time range of this run: ${range:-not given}."
} >"$report"
while IFS= read -r folder; do
    case $folder in
        '') continue ;;
        '~') folder=$HOME ;;
        '~/'*) folder=$HOME/${folder#'~/'} ;;
    esac
    {
        echo
        echo "## $folder"
        echo
    } >>"$report"
    if [ ! -d "$folder" ]; then
        echo "There is no such folder." >>"$report"
        echo "$folder: there is no such folder" >&2
        continue
    fi
    looked=$((looked + 1))
    df -Pk "$folder" | awk 'NR == 2 { printf "%.1f GiB free of %.1f GiB (%s used).\n\n", $4 / 1048576, $2 / 1048576, $5 }' >>"$report"
    entries "$folder" >"$sizes.folder"
    if [ -f "$before" ]; then
        in_words phase=before "$before" phase=now - <"$sizes.folder" >>"$report"
    else
        in_words phase=now - <"$sizes.folder" >>"$report"
    fi
    cat "$sizes.folder" >>"$sizes"
    rm -f "$sizes.folder"
done <<END
$folders
END

if [ "$looked" -eq 0 ]; then
    echo 'none of the folders is there' >&2
    exit 1
fi
cp "$sizes" "$before.new"
mv "$before.new" "$before"
echo "Looked at $looked folder(s); the report is $report."
