#!/usr/bin/env bash
# Runs what deploy/ has for Slurm under a Slurm of one machine, its daemons and munge's begun here: slurm_cluster.sh BATCHFIT URL.
# Needs root and Debian's munge, slurmctld, slurmd and slurm-client. The node has 8 GPUs that are not there; the agent's are simulated.
set -euo pipefail
binary=$(realpath "$1") url=$2 here=$(pwd)
for program in munged slurmctld slurmd sbatch; do
  command -v "$program" >/dev/null || { echo "left out: $program is not here"; exit 0; }
done
[ "$(id -u)" = 0 ] || { echo "left out: not root"; exit 0; }

folder=$(mktemp -d)
chmod 755 "$folder"
daemons=()
end() {
  for daemon in "${daemons[@]}"; do kill "$daemon" 2>/dev/null || true; done
  wait
  rm -rf "$folder"
}
trap end EXIT
free() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
fails() { echo "FAILED: $1"; scontrol show job; tail -n 8 "$folder"/*.log "$folder"/*.out 2>/dev/null; exit 1; }
until_it() { local left=400; until "$@" >/dev/null 2>&1; do left=$((left - 1)); [ "$left" -gt 0 ] || fails "waited in vain for: $*"; sleep 0.2; done; }

ln -s "$binary" "$folder/batchfit"
head -c 1024 /dev/urandom >"$folder/munge.key"
chmod 600 "$folder/munge.key"
mkdir -m 755 "$folder/munge"
munged --foreground --force --key-file "$folder/munge.key" --socket "$folder/munge/socket" --pid-file "$folder/munge/pid" \
  --log-file "$folder/munge.log" --seed-file "$folder/munge/seed" 2>>"$folder/munged.log" &
daemons+=($!)
node=$(hostname -s)
cat >"$folder/slurm.conf" <<CONF
ClusterName=batchfit
SlurmctldHost=$node(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/munge/socket
CredType=cred/munge
SlurmctldPort=$(free)
SlurmdPort=$(free)
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
GresTypes=gpu
KillWait=10
OverTimeLimit=0
NodeName=$node NodeAddr=127.0.0.1 CPUs=8 Boards=1 SocketsPerBoard=1 CoresPerSocket=8 ThreadsPerCore=1 RealMemory=512 Gres=gpu:8 State=UNKNOWN
PartitionName=main Nodes=$node Default=YES MaxTime=INFINITE State=UP
SlurmdParameters=config_overrides
CONF
for gpu in {0..7}; do mknod "$folder/gpu$gpu" c 1 3; done
echo "Name=gpu File=$folder/gpu[0-7]" >"$folder/gres.conf"
export SLURM_CONF=$folder/slurm.conf
mkdir "$folder/state" "$folder/spool"
until_it test -S "$folder/munge/socket"
slurmctld -D -i >>"$folder/slurmctld.out.log" 2>&1 &
daemons+=($!)
slurmd -D -N "$node" >>"$folder/slurmd.out.log" 2>&1 &
daemons+=($!)
is_idle() { sinfo --noheader --format %t | grep -qx idle; }
until_it is_idle
echo "slurm: $(sinfo --version), $(sinfo --noheader --format '%n has %c processors and %G')"

cd "$folder"
export PATH="$folder:$PATH" BATCHFIT_SERVER=$url BATCHFIT_URL=$url HOME=$folder
state() { scontrol show job "$1" | grep -o 'JobState=[A-Z]*' | cut -d= -f2; }
is_over() { [[ $(state "$1") =~ ^(COMPLETED|FAILED|CANCELLED|TIMEOUT|NODE_FAIL)$ ]]; }
is_known() { curl -fsS "$url/v1/agents" | grep -q "\"$node-$1\""; }

# The agent of a job takes one fit, and the job is over.
job=$(BATCHFIT_WAIT=120 sbatch --parsable --output agent.out "$here/deploy/agent.sbatch" --simulate h100-80g)
until_it is_known "$job"
answer=$(curl -fsS -H 'Prefer: wait=60' "$url/v1/fits" -d '{"model": {"preset": "resnet18", "num_classes": 11}, "device": "h100-80g"}')
grep -q "simulated by the agent $node-$job" <<<"$answer" || fails "an answer: $answer"
until_it is_over "$job"
[ "$(state "$job")" = COMPLETED ] || fails "the agent's job is $(state "$job")"
echo "agent.sbatch: one fit answered, the job is over"

# The agent of a job that is cancelled drains, and nothing of it is left.
job=$(BATCHFIT_WAIT=600 sbatch --parsable --output drained.out "$here/deploy/agent.sbatch" --simulate h100-80g)
until_it is_known "$job"
scancel --signal=TERM --batch "$job"
until_it is_over "$job"
[ "$(state "$job")" = COMPLETED ] || fails "the drained agent's job is $(state "$job")"
grep -q 'there was nothing to do' drained.out || [ ! -s drained.out ] || cat drained.out
echo "agent.sbatch: SIGTERM drained the agent, the job is $(state "$job")"

# A training job asks, and its tasks get what was answered.
printf 'import os, sys\nprint("task", os.environ["SLURM_PROCID"], *sys.argv[1:])\n' >train.py
ln -sf "$(command -v python3)" python
job=$(sbatch --parsable --output batch.out "$here/deploy/batch.sbatch")
until_it is_over "$job"
[ "$(state "$job")" = COMPLETED ] || fails "the training job is $(state "$job")"
[ "$(grep -Ec '^task [0-7] --batch-size [1-9][0-9]* --accumulation-steps [1-9]' batch.out)" = 8 ] || fails "8 tasks with a batch"
echo "batch.sbatch: $(head -1 batch.out); 8 tasks got it"

# A task prolog puts the batch into the environment.
job=$(BATCHFIT_MODEL=resnet50 BATCHFIT_ON=h100-80g sbatch --parsable --output prolog.out --wrap \
  "srun --task-prolog=$here/deploy/prolog.sh sh -c 'echo micro-batch \$BATCHFIT_MICRO_BATCH'")
until_it is_over "$job"
grep -Eq '^micro-batch [1-9]' prolog.out || fails "a task with a micro-batch"
echo "prolog.sh: $(cat prolog.out)"
