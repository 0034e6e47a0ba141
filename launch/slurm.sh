#!/usr/bin/env bash
# Pretrain on a Slurm cluster: submits launch/slurm.sbatch.
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage() {
    cat <<EOF
usage: launch/slurm.sh [--dry-run] [OPTION OF sbatch...] -- [SETTINGS OF xlnet_jax.train]

The run takes whole nodes, with a process on each. Options of sbatch are passed on: --nodes=4 --gpus-per-node=8
--time=24:00:00. Near the time limit the run saves and is queued again; Slurm queues a preempted run again. Every node
must see the workdir. PYTHON names the python to train with ($python).
EOF
}

options=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    case $1 in
        --help) usage && exit ;;
        --dry-run) dry_run=true ;;
        -*) options+=("$1") ;;
        *) fail "$1 is no option: give options of sbatch as --name=value, and settings of training after --" ;;
    esac
    shift
done
[[ " $* " =~ \ --workdir[=\ ] ]] || fail "the run needs a workdir that every node sees: give --workdir FOLDER after --"
needs sbatch "$python"
run sbatch ${options[@]+"${options[@]}"} launch/slurm.sbatch srun --wait=120 "$python" -m xlnet_jax.train "${@:2}"
