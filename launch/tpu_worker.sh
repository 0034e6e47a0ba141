#!/usr/bin/env bash
# launch/tpu_vm.sh copies this script, the wheel and requirements.txt to every worker of a TPU VM and calls `install WHEEL`
# and `train SETTING...`.
# Training is the systemd unit xlnet, so it survives the ssh connection and gets a signal when the machine shuts down.
set -euo pipefail

state=$(systemctl show xlnet --property=SubState --value)
case $state in
    dead | failed | exited) ;;
    *) echo "xlnet is $state on $(hostname): nothing to do; launch/tpu_vm.sh stop ends it" && exit ;;
esac

install() {
    # The machine's Python is 3.10. uv installs a newer one and verifies its checksum.
    echo "uv==0.13.9 --hash=sha256:d7f459fe4fd247d830351c75686d3996ace3c6f3f728eb0e85a30b7ada0cef19" >uv.txt
    python3 -m pip install --quiet --disable-pip-version-check --require-hashes --upgrade --target ~/uv --requirement uv.txt
    ~/uv/bin/uv venv --quiet --clear --python 3.12 ~/xlnet
    ~/uv/bin/uv pip install --quiet --python ~/xlnet/bin/python --require-hashes \
        --build-constraint requirements.txt --requirement requirements.txt
    ~/uv/bin/uv pip install --quiet --python ~/xlnet/bin/python --no-deps "xlnet_jax @ file://$HOME/$1"
}

train() {
    # A failed or finished unit stays loaded. A finished one starts again if another worker is not finished.
    sudo systemctl reset-failed xlnet 2>/dev/null || true
    if [ "$state" = exited ]; then sudo systemctl stop xlnet; fi
    # The unit remains after success, to distinguish a finished run from one that was lost with its machine. Do not
    # restart after exit code 2, a mistake of the user. The TPU needs more locked memory than services get by default.
    # In systemd, $$ is a dollar sign.
    sudo systemd-run --unit=xlnet --uid="$(id -un)" --working-directory="$HOME" --setenv=PYTHONUNBUFFERED=1 \
        --remain-after-exit --property=Restart=on-failure --property=RestartPreventExitStatus=2 \
        --property=RestartSec=10 --property=StartLimitIntervalSec=3600 --property=StartLimitBurst=20 \
        --property=TimeoutStopSec=600 --property=LimitMEMLOCK=infinity --property=LimitNOFILE=1048576 \
        ~/xlnet/bin/python -m xlnet_jax.train --tpu "${@//\$/\$\$}"
}

"$@"
