#!/bin/busybox sh
# The first process of a guest. /sys/fs/bpf stays unmounted: that is xkub's to do.
/bin/busybox --install -s /bin
export PATH=/usr/sbin:/bin HOME=/root
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t tmpfs run /run
mount -t tmpfs tmp /tmp
hostname "$(sed -n 's/.*xkub.name=\([^ ]*\).*/\1/p' /proc/cmdline)"
while read -r module; do
    # As systemd has it: the device that this module makes by itself is nobody's.
    case $module in dummy.ko) options=numdummies=0 ;; *) options= ;; esac
    insmod "/modules/$module" $options || echo "xkub: insmod $module failed"
done < /modules/order
# Addresses are usable at once.
echo 0 > /proc/sys/net/ipv6/conf/default/accept_dad
echo 0 > /proc/sys/net/ipv6/conf/all/accept_dad
echo 1 > /proc/sys/kernel/panic_on_oops
ip link set lo up
# A shell for a person.
[ -c /dev/ttyS2 ] && (while :; do setsid -c dash -i < /dev/ttyS2 > /dev/ttyS2 2>&1; done) &
while :; do
    sh /agent
    echo "xkub: the agent ended"
done
