#!/usr/bin/env bash
# Pretraining on a GKE cluster that XPK made: its queue, and a JobSet that it writes.
# shellcheck source-path=SCRIPTDIR source=../common.sh
. "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

name=xlnet cluster='' image='' type='' slices=1 priority=medium max_restarts=100 grace=300 project='' zone=''
usage() {
    cat <<EOF
usage: launch/gke/xpk.sh ACTION --cluster CLUSTER [SETTING...] [-- SETTINGS OF xlnet_jax.train]

  create     starts training
  delete     saves and stops training
(launch/gke/jobset.sh image makes the image, and jobset.sh follow prints the log)

  --cluster CLUSTER     of xpk cluster create
  --image IMAGE         of launch/gke/jobset.sh image (for create)
  --type TYPE           of a slice, as v6e-256 or v5p-128 (for create)
  --slices N            ($slices)
  --priority PRIORITY   very-low, low, medium, high or very-high ($priority)
  --max-restarts N      preemptions and crashes until the run is given up ($max_restarts)
  --grace SECONDS       to save in, when a pod is to end ($grace)
  --name NAME           of the workload ($name)
  --project PROJECT     of Google Cloud (gcloud's own)
  --zone ZONE           of the cluster (gcloud's own)
  --dry-run             prints the command and does not run it
EOF
}

xpk_workload() {
    run xpk workload "$1" --workload="$name" --cluster="$cluster" ${project:+--project="$project"} \
        ${zone:+--zone="$zone"} "${@:2}"
}

create() {
    # XPK restarts on exit codes from 127 up; 1 is a crash, and 2 a mistake, which a restart does not mend. exec: the
    # signal to save goes to the command's first process.
    xpk_workload create --tpu-type="$type" --num-slices="$slices" --docker-image="$image" --priority="$priority" \
        --max-restarts="$max_restarts" --restart-on-exit-codes=1 --termination-grace-period-seconds="$grace" \
        --command="exec python -m xlnet_jax.train --tpu $(quoted "${rest[@]}")"
}

delete() {
    xpk_workload delete --quiet
}

action=${1-}
case $action in
    create | delete) settings \
        'name cluster image type slices priority max-restarts grace project zone' '' "${@:2}" ;;
    --help) usage && exit ;;
    *) fail "say what to do: create or delete; --help says more" ;;
esac
required cluster
if [ "$action" = create ]; then
    required image type
    whole_number slices max_restarts grace
    cloud_workdir
    named_slices "$slices"
fi
needs xpk
"$action"
