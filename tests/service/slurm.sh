#!/usr/bin/env bash
# Runs what deploy/ has for Slurm without Slurm: slurm.sh BATCHFIT URL. The agent has simulated cards, on the service at URL.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
ln -s "$(realpath "$1")" "$folder/batchfit"
export PATH="$folder:$PATH" HOME="$folder" BATCHFIT_SERVER=$2
for script in deploy/*.sbatch deploy/*.sh; do bash -n "$script"; done

# A job that names a model gets its batch, one that does not is left as it is, and a wrong name keeps none from starting.
said=$(BATCHFIT_MODEL=resnet50 BATCHFIT_ON=h100-80g BATCHFIT_TARGET=4096 bash deploy/prolog.sh)
grep -Eq '^export BATCHFIT_MICRO_BATCH=[1-9][0-9]*$' <<<"$said"
[ -z "$(bash deploy/prolog.sh)" ]
wrong=$(BATCHFIT_MODEL=resnet5 bash deploy/prolog.sh)
grep -q '^print batchfit: no batch' <<<"$wrong"
echo "prolog: $(head -1 <<<"$said")"

# Nothing to do is no failure.
said=$(BATCHFIT_WAIT=0 SLURMD_NODENAME=node1 SLURM_JOB_ID=1 bash deploy/agent.sbatch --simulate h100-80g 2>"$folder/log") || { cat "$folder/log"; exit 1; }
grep -q '^there was nothing to do$' <<<"$said"
# A fit is taken and answered.
SLURMD_NODENAME=node1 SLURM_JOB_ID=2 BATCHFIT_WAIT=60 bash deploy/agent.sbatch --simulate h100-80g 2>"$folder/log" &
agent=$!
until curl -fsS "$2/v1/agents" | grep -q '"node1-2"'; do sleep 0.2; done
answer=$(curl -fsS -H 'Prefer: wait=60' "$2/v1/fits" -d '{"model": {"preset": "resnet18"}, "device": "h100-80g"}')
grep -q 'simulated by the agent node1-2' <<<"$answer"
wait "$agent"
echo "agent: one fit answered, and it ended"
# One that is told to end while it waits ends well.
SLURMD_NODENAME=node1 SLURM_JOB_ID=3 BATCHFIT_WAIT=600 bash deploy/agent.sbatch --simulate h100-80g 2>"$folder/log" &
agent=$!
until curl -fsS "$2/v1/agents" | grep -q '"node1-3"'; do sleep 0.2; done
kill -TERM "$agent"
wait "$agent"
echo "agent: SIGTERM ended it"
