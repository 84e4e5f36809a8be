# Serves commands on the second serial port.
#
# In:  ":<number> <seconds> <bytes>", then the command, that many bytes.
# Out: "\n:<number> <status> <bytes of stdout> <bytes of stderr>", then both outputs. Lengths come first, so no output can be
# taken for an answer.
exec 3<> /dev/ttyS1
stty raw -echo < /dev/ttyS1
printf '\n:ready %s\n' "$(cat /proc/sys/kernel/random/boot_id)" >&3
while read -r number seconds bytes <&3; do
    head -c "$bytes" <&3 > /run/command
    timeout -s KILL "$seconds" dash /run/command < /dev/null > /run/stdout 2> /run/stderr 3>&-
    status=$?
    printf '\n%s %s %s %s\n' "$number" "$status" "$(stat -c %s /run/stdout)" "$(stat -c %s /run/stderr)" >&3
    cat /run/stdout /run/stderr >&3
done
