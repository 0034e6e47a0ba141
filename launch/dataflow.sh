#!/usr/bin/env bash
# Prepare a corpus on Dataflow.
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

name=xlnet-prepare project='' region='' temp='' machine_type=n2-standard-8 max_workers=100 image=''
usage() {
    cat <<EOF
usage: launch/dataflow.sh --project PROJECT --region REGION --temp gs://BUCKET/TEMP [SETTING...]
           -- SETTINGS OF data_pipelines.prepare

  --project PROJECT    Google Cloud project
  --region REGION      region, such as europe-west4; best the region of the text
  --temp FOLDER        gs:// folder for Dataflow's temporary files
  --machine-type TYPE  machine type of a worker ($machine_type)
  --max-workers N      maximum number of workers ($max_workers)
  --image IMAGE        worker image with Beam and xlnet_jax, NAME@sha256:DIGEST (default: workers install the last
                       commit)
  --name NAME          name of the job ($name)
  --dry-run            prints the commands without running them

PYTHON is a Python with xlnet_jax[beam] ($python): make VENV=.venv-beam .venv-beam/stamp-beam creates
.venv-beam/bin/python. The workers use the same minor version of Python.
EOF
}

settings 'name project region temp machine-type max-workers image' '' "$@"
required project region temp
whole_number max_workers
[[ $temp == gs://* ]] || fail "--temp $temp: Dataflow needs a folder in a bucket: give gs://BUCKET/TEMP"
[[ " ${rest[*]-} " =~ \ --out[=\ ]gs:// ]] ||
    fail "the workers must be able to write the corpus: give --out gs://BUCKET/CORPUS after --"
[ -z "$image" ] || by_digest image
needs git "$python"
package=sdk_container_image=$image
if [ -z "$image" ]; then
    package=extra_package=$wheel
    make_wheel
fi
run "$python" -m data_pipelines.prepare --runner Dataflow \
    --beam-options "project=$project" "region=$region" "job_name=$name" "temp_location=$temp" \
    "machine_type=$machine_type" "max_num_workers=$max_workers" "$package" "${rest[@]}"
