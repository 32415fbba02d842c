#!/usr/bin/env bash
# Runs deploy/batch.sbatch without Slurm, against the service at URL: sbatch.sh URL. `srun` is a stand-in that prints its arguments.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
printf '#!/bin/sh\necho "srun $*"\n' >"$folder/srun"
chmod +x "$folder/srun"
said=$(PATH="$folder:$PATH" BATCHFIT_URL=$1 SLURM_NTASKS=8 bash deploy/batch.sbatch)
echo "$said"
grep -Eq '^srun python train.py --batch-size [1-9][0-9]* --accumulation-steps [1-9]' <<<"$said"
