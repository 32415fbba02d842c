#!/bin/bash
# A task prolog of Slurm (TaskProlog=/etc/slurm/batchfit-prolog.sh, or srun --task-prolog): puts the largest batch into the environment of
# each task of a training job, as BATCHFIT_MICRO_BATCH and BATCHFIT_ACCUMULATION_STEPS. Slurm takes lines `export NAME=VALUE` of its stdout.
#
# A job that wants it names its model: sbatch --export=ALL,BATCHFIT_MODEL=resnet50,BATCHFIT_ON=8xh100,BATCHFIT_TARGET=4096. Other jobs are
# left as they are. What goes wrong is told, and keeps no job from starting.
[ -n "${BATCHFIT_MODEL:-}" ] || exit 0
flags=(--on "${BATCHFIT_ON:-h100-80g}")
[ -z "${BATCHFIT_TARGET:-}" ] || flags+=(--target "$BATCHFIT_TARGET")
[ -z "${BATCHFIT_AMP:-}" ] || flags+=(--amp "$BATCHFIT_AMP")
# Each task asks: the answer takes about a second, and the database of one user is no matter of another.
if answer=$(batchfit fit "$BATCHFIT_MODEL" "${flags[@]}" --format env --database :memory: 2>/tmp/batchfit-prolog.$$); then
  printf '%s\n' "$answer"
else
  echo "print batchfit: no batch: $(tr '\n' ' ' </tmp/batchfit-prolog.$$)"
fi
rm -f "/tmp/batchfit-prolog.$$"
exit 0
