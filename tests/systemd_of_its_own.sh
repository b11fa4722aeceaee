#!/bin/sh
# systemd_of_its_own FOLDER: becomes a systemd, in namespaces that the caller made (unshare --fork --pid --mount --uts
# --ipc): its units are those in FOLDER/units and nothing else. Everything written into /etc, /usr/local, /var/lib and
# /run goes into FOLDER/changed.
set -eu
folder=$1
mount --make-rprivate /
mount -t tmpfs tmpfs "$folder/changed"
for path in /etc /usr/local /var/lib; do
    mkdir -p "$folder/changed/upper$path" "$folder/changed/work$path"
    mount -t overlay overlay -o "lowerdir=$path,upperdir=$folder/changed/upper$path,workdir=$folder/changed/work$path" $path
done
mount -t tmpfs tmpfs /run
mkdir -p /run/systemd/system /run/logs
cp -r "$folder/units/." /run/systemd/system/
# Its own part of the cgroup hierarchy, named after it: the caller removes it.
if [ -d /sys/fs/cgroup/systemd ]; then
    group=/sys/fs/cgroup/systemd/$(basename "$folder")
else
    group=/sys/fs/cgroup/$(basename "$folder")
fi
mkdir -p "$group"
echo $$ >"$group/cgroup.procs"
echo "$group" >"$folder/group"
cp "$folder/trainer" /usr/local/bin/trainer
echo 'trainer:x:990:990::/var/lib/trainer:/usr/sbin/nologin' >>/etc/passwd
echo 'trainer:x:990:' >>/etc/group
mkdir -p /etc/trainer /var/lib/trainer
cp "$folder"/members/*.conf /etc/trainer/
cp -r "$folder"/home/. /var/lib/trainer/
chown -R trainer: /var/lib/trainer
chmod 700 /var/lib/trainer
exec unshare --cgroup sh -c '
    umount -R -l /sys/fs/cgroup
    if grep -q "name=systemd" /proc/self/cgroup; then
        mount -t tmpfs tmpfs /sys/fs/cgroup
        mkdir /sys/fs/cgroup/systemd
        mount -t cgroup -o none,name=systemd cgroup /sys/fs/cgroup/systemd
    else
        mount -t cgroup2 cgroup2 /sys/fs/cgroup
    fi
    export container=other SYSTEMD_UNIT_PATH=/run/systemd/system
    exec /lib/systemd/systemd --system --unit=idle.target --log-target=console --show-status=0'
