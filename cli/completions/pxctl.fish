# fish completion for pxctl
function _pxctl_completion
    set -l word (commandline -ct)
    set -l response (env _PXCTL_COMPLETE=fish_complete COMP_WORDS=(commandline -cp | string collect) \
        COMP_CWORD=$word pxctl 2>/dev/null)

    for line in $response
        # A description may have commas: only the first one ends the kind.
        set -l parts (string split -m 1 "," -- $line)

        switch $parts[1]
            case plain
                echo -- $parts[2]
            case dir file
                # A path may be the end of a word only, as in KEY=@PATH.
                set -l length (math (string length -- "$word") - (string length -- "$parts[2]"))
                set -l before (string sub -l $length -- "$word")
                set -l paths __fish_complete_path
                test $parts[1] = dir; and set paths __fish_complete_directories

                for path in ($paths "$parts[2]")
                    echo -- $before$path
                end
        end
    end
end

complete --no-files --command pxctl --arguments "(_pxctl_completion)"
