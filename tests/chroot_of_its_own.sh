#!/bin/sh
# chroot_of_its_own.sh FOLDER COMMAND...: runs the command in a private copy of this machine's file system. Changes are
# kept in FOLDER for the next run. Run it under `unshare --mount --uts`.
set -eu

folder=$1
shift
mkdir -p "$folder/changes" "$folder/work" "$folder/root"
mount -t tmpfs none "$folder/root"
mkdir "$folder/root/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$folder/changes,workdir=$folder/work" "$folder/root/root"
for each in /proc /dev /tmp "$PWD"; do
    mkdir -p "$folder/root/root$each"
    mount --rbind "$each" "$folder/root/root$each"
done
hostname "$(basename "$folder")"
exec chroot "$folder/root/root" /bin/sh -c 'cd "$0" && exec "$@"' "$PWD" "$@"
