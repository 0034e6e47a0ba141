#!/usr/bin/env bash
# Pretrain on a Slurm cluster: submit launch/slurm.sbatch.
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage() {
    cat <<EOF
usage: launch/slurm.sh [--dry-run] [OPTION OF sbatch...] -- [SETTINGS OF xlnet_jax.train]

The run uses whole nodes, with one process on each. Options go to sbatch, such as --nodes=4 --gpus-per-node=8
--time=24:00:00. The run saves and is requeued near the time limit and after a preemption. The workdir must be on a disk
that all nodes share. PYTHON is the Python that trains ($python).
EOF
}

options=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    case $1 in
        --help) usage && exit ;;
        --dry-run) dry_run=true ;;
        -*) options+=("$1") ;;
        *) fail "$1 is not an option: give options of sbatch as --name=value, and settings of training after --" ;;
    esac
    shift
done
[[ " $* " =~ \ --workdir[=\ ] ]] ||
    fail "the workdir must be on a disk that all nodes share: give --workdir FOLDER after --"
needs sbatch "$python"
run sbatch ${options[@]+"${options[@]}"} launch/slurm.sbatch srun --wait=120 "$python" -m xlnet_jax.train "${@:2}"
