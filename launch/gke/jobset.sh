#!/usr/bin/env bash
# Pretrain on GKE with a JobSet, which its controller restarts.
# shellcheck source-path=SCRIPTDIR source=../common.sh
. "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

name=xlnet base='' image='' accelerator='' topology='' slices=1 chips_per_host='' spot=false max_restarts=100 grace=300
namespace=default service_account=default
usage() {
    cat <<EOF
usage: launch/gke/jobset.sh ACTION [SETTING...] [-- SETTINGS OF xlnet_jax.train]

  image      builds and pushes an image of the last commit of xlnet_jax
  create     starts training: fills in launch/gke/jobset.yaml and creates the JobSet
  follow     prints the log until Ctrl-C
  delete     saves and stops training

  --base IMAGE                 image of Python 3.12 to build on, NAME@sha256:DIGEST (for image)
  --image IMAGE                image to push, NAME:TAG (for image), or to run, NAME@sha256:DIGEST (for create)
  --accelerator ACCELERATOR    node label gke-tpu-accelerator, such as tpu-v6e-slice (for create)
  --topology TOPOLOGY          node label gke-tpu-topology, such as 16x16 (for create)
  --slices N                   number of slices of that topology ($slices)
  --spot                       use Spot nodes only
  --chips-per-host N           chips per node (4, or all chips of a smaller slice)
  --max-restarts N             number of preemptions and crashes after which the run ends ($max_restarts)
  --grace SECONDS              time to save before a pod is killed ($grace)
  --name NAME                  name of the JobSet ($name)
  --namespace NAMESPACE        Kubernetes namespace ($namespace)
  --service-account ACCOUNT    Kubernetes service account with access to the bucket ($service_account)
  --dry-run                    prints the manifest and the commands without running them
EOF
}

image() {
    make_wheel
    run cp launch/requirements.txt launch/gke/entrypoint.sh dist/
    run docker build --platform=linux/amd64 --file=launch/gke/Dockerfile --build-arg=BASE="$base" \
        --build-arg=WHEEL="${wheel##*/}" --tag="$image" dist
    run docker push "$image"
    run docker image inspect --format='{{index .RepoDigests 0}}' "$image" # --image for create
}

create() {
    local text
    text=$(manifest)
    run mkdir -p dist
    if $dry_run; then
        printf "cat >dist/%s.yaml <<'EOF'\n%s\nEOF\n" "$name" "$text"
    else
        printf '%s\n' "$text" >"dist/$name.yaml"
    fi
    run kubectl create --namespace="$namespace" --filename="dist/$name.yaml"
}

# Prints the template with its ${...} replaced, like envsubst, which few machines have.
# shellcheck disable=SC2034 # used by the template
manifest() {
    local hosts=$((chips / chips_per_host)) arguments setting spot_selector=''
    arguments=[$(json "${rest[@]}")]
    for setting in name image accelerator topology service_account; do
        local "$setting=$(json "${!setting}")"
    done
    if $spot; then spot_selector='cloud.google.com/gke-spot: "true"'; fi
    eval "cat <<TEMPLATE
$(<launch/gke/jobset.yaml)
TEMPLATE" | sed '/^#/d; /^ *$/d'
}

# json WORD...: prints the words as texts of JSON, which is YAML.
json() {
    local word list=''
    for word; do
        word=${word//\\/\\\\}
        word=${word//\"/\\\"}
        list+="${list:+, }\"$word\""
    done
    printf '%s\n' "$list"
}

follow() {
    local host=jobset.sigs.k8s.io/job-index=0,batch.kubernetes.io/job-completion-index=0
    run kubectl logs --namespace="$namespace" --selector="jobset.sigs.k8s.io/jobset-name=$name,$host" \
        --follow --tail=100
}

delete() {
    run kubectl delete jobset "$name" --namespace="$namespace"
}

check_slice() {
    local side
    case $accelerator in
        tpu-v3-slice | tpu-v4-podslice | tpu-v5-lite-podslice | tpu-v5p-slice | tpu-v6e-slice | tpu7x) ;;
        *) fail "--accelerator $accelerator: give tpu-v3-slice, tpu-v4-podslice, tpu-v5-lite-podslice," \
            "tpu-v5p-slice, tpu-v6e-slice or tpu7x" ;;
    esac
    [[ $topology =~ ^[1-9][0-9]*(x[1-9][0-9]*){1,2}$ ]] ||
        fail "--topology $topology: give the chips along each axis, such as 4x8 or 4x4x8"
    chips=1
    for side in ${topology//x/ }; do chips=$((chips * side)); done
    chips_per_host=${chips_per_host:-$((chips < 4 ? chips : 4))}
    whole_number chips_per_host
    [ $((chips % chips_per_host)) = 0 ] ||
        fail "--chips-per-host $chips_per_host does not divide the $chips chips of $topology"
}

action=${1-}
case $action in
    image | create | follow | delete) settings \
        'name base image accelerator topology slices chips-per-host max-restarts grace namespace service-account' \
        spot "${@:2}" ;;
    --help) usage && exit ;;
    *) fail "give an action: image, create, follow or delete; --help explains them" ;;
esac
case $action in
    image) required image base && by_digest base && needs git "$python" docker ;;
    create)
        required image accelerator topology
        by_digest image
        whole_number slices max_restarts grace
        check_slice
        cloud_workdir
        named_slices "$slices"
        needs kubectl
        ;;
    *) needs kubectl ;;
esac
"$action"
