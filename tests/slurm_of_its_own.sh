#!/bin/sh
# slurm_of_its_own.sh FOLDER NODES: a munged, a slurmctld and NODES slurmds as ordinary processes, with all their files
# in FOLDER. Run it under `unshare --mount --pid --fork`: node n1 is 127.0.1.1 in a private /etc/hosts, and everything
# ends with this script. Prints "up" once the nodes are idle, and then runs the lines of standard input, one by one.
set -eu

folder=$1 nodes=$2
mkdir -p "$folder/state" "$folder/spool" "$folder/log"
chmod 711 "$folder"
{
    cat /etc/hosts
    for i in $(seq "$nodes"); do echo "127.0.1.$i n$i"; done
} >"$folder/hosts"
mount --bind "$folder/hosts" /etc/hosts

(umask 077 && head -c 128 /dev/urandom >"$folder/munge.key")
munged --force --key-file="$folder/munge.key" --socket="$folder/munge.socket" --pid-file="$folder/munge.pid" \
    --log-file="$folder/log/munged" --seed-file="$folder/munge.seed" --num-threads=2

cat >"$folder/slurm.conf" <<END
ClusterName=test
SlurmctldHost=$(hostname)(127.0.0.1)
SlurmctldPort=$PORT
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
AuthType=auth/munge
AuthInfo=socket=$folder/munge.socket
CryptoType=crypto/munge
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool/%n
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd-%n.pid
SlurmctldLogFile=$folder/log/slurmctld
SlurmdLogFile=$folder/log/slurmd-%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
SchedulerType=sched/builtin
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
SlurmdParameters=config_overrides
SlurmctldTimeout=300
SlurmdTimeout=300
KillWait=30
OverTimeLimit=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
BatchStartTimeout=10
NodeName=n[1-$nodes] NodeHostname=$(hostname) NodeAddr=127.0.0.1 Port=[$((PORT + 1))-$((PORT + nodes))] CPUs=4
PartitionName=low Nodes=ALL Default=YES State=UP PriorityTier=1 GraceTime=60
PartitionName=high Nodes=ALL State=UP PriorityTier=10 PreemptMode=OFF
END
export SLURM_CONF="$folder/slurm.conf"
slurmctld -D >"$folder/log/slurmctld.out" 2>&1 &
for i in $(seq "$nodes"); do
    mkdir -p "$folder/spool/n$i"
    slurmd -D -N "n$i" >"$folder/log/slurmd-n$i.out" 2>&1 &
done
for _ in $(seq 300); do
    [ "$(sinfo -h -p low -t idle -o %D 2>/dev/null)" = "$nodes" ] && break
    sleep 0.1
done
[ "$(sinfo -h -p low -t idle -o %D)" = "$nodes" ] || { echo "nodes are not idle: $(sinfo -h 2>&1)"; exit 1; }
echo up
sh
