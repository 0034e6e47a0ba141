#!/usr/bin/env bash
# Pretrain on a GKE cluster that XPK created. XPK queues the run and writes its JobSet.
# shellcheck source-path=SCRIPTDIR source=../common.sh
. "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

name=xlnet cluster='' image='' type='' slices=1 priority=medium max_restarts=100 grace=300 project='' zone=''
usage() {
    cat <<EOF
usage: launch/gke/xpk.sh ACTION --cluster CLUSTER [SETTING...] [-- SETTINGS OF xlnet_jax.train]

  create     starts training
  delete     saves and stops training
(launch/gke/jobset.sh image builds the image; launch/gke/jobset.sh follow prints the log)

  --cluster CLUSTER     name of the cluster, as given to xpk cluster create
  --image IMAGE         image from launch/gke/jobset.sh image, NAME@sha256:DIGEST (for create)
  --type TYPE           type of a slice, such as v6e-256 or v5p-128 (for create)
  --slices N            number of slices ($slices)
  --priority PRIORITY   very-low, low, medium, high or very-high ($priority)
  --max-restarts N      number of preemptions and crashes after which the run ends ($max_restarts)
  --grace SECONDS       time to save before a pod is killed ($grace)
  --name NAME           name of the workload ($name)
  --project PROJECT     Google Cloud project (default: gcloud's)
  --zone ZONE           zone of the cluster (default: gcloud's)
  --dry-run             prints the command without running it
EOF
}

xpk_workload() {
    run xpk workload "$1" --workload="$name" --cluster="$cluster" ${project:+--project="$project"} \
        ${zone:+--zone="$zone"} "${@:2}"
}

create() {
    # XPK restarts after exit codes of at least 127. Add 1, a crash, but not 2, a mistake of the user. With exec, the
    # run is the command's first process, which gets the signal to save.
    xpk_workload create --tpu-type="$type" --num-slices="$slices" --docker-image="$image" --priority="$priority" \
        --max-restarts="$max_restarts" --restart-on-exit-codes=1 --termination-grace-period-seconds="$grace" \
        --command="exec /entrypoint.sh python -m xlnet_jax.train --tpu $(quoted "${rest[@]}")"
}

delete() {
    xpk_workload delete --quiet
}

action=${1-}
case $action in
    create | delete) settings \
        'name cluster image type slices priority max-restarts grace project zone' '' "${@:2}" ;;
    --help) usage && exit ;;
    *) fail "give an action: create or delete; --help explains them" ;;
esac
required cluster
if [ "$action" = create ]; then
    required image type
    by_digest image
    whole_number slices max_restarts grace
    cloud_workdir
    named_slices "$slices"
fi
needs xpk
"$action"
