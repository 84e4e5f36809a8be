#!/bin/busybox sh
# The first process of a guest with a disk: loads what a disk and a node need, puts the test's files there, and hands over
# to systemd. The disk carries no modules: they belong to the kernel that the test chose.
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
while read -r module; do
    # As systemd has it: the device that this module makes by itself is nobody's.
    case $module in dummy.ko) options=numdummies=0 ;; *) options= ;; esac
    insmod "/modules/$module" $options || echo "lab: insmod $module failed"
done < /modules/order
echo 1 > /proc/sys/kernel/panic_on_oops
mkdir /disk
mount -t ext4 /dev/vda /disk || echo "lab: no disk"
# At the first boot alone: what happened to them since is the guest's.
if [ ! -e /disk/var/lib/lab-placed ]; then
    cp -a /files/. /disk/
    : > /disk/var/lib/lab-placed
fi
mount --move /dev /disk/dev
umount /sys /proc
exec switch_root /disk /sbin/init
