#!/usr/bin/env bash
# Builds stand-ins for the two public images that deploy/ starts from, for machines that reach no
# image registry. The Dockerfile (build argument BASE) and the compose file (NATS_IMAGE) are used as
# they are.
#
#   hayrunner-standin:python   for python:3.12-slim: minimal Debian, its Python as /usr/local/bin/python
#   hayrunner-standin:nats     for nats:*-alpine: the same plus a nats-server and wget
#
# usage: build-standin.sh NATS_SERVER_BINARY
#
# An image that exists already is kept. Needs root, mmdebstrap or debootstrap, and a Docker daemon.
# The machine's pip settings and certificates go into the stand-in, because a build does not see the
# machine's environment and they have no place in the project's Dockerfile.
set -euo pipefail

nats_server=${1:?usage: build-standin.sh NATS_SERVER_BINARY}
python_image=hayrunner-standin:python
nats_image=hayrunner-standin:nats
packages=python3,python3-venv,ca-certificates,busybox

exists() { docker image inspect "$1" >/dev/null 2>&1; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

bootstrap() {
  local suite
  suite=$(. /etc/os-release && echo "${VERSION_CODENAME:-bookworm}")
  if command -v mmdebstrap >/dev/null; then
    mmdebstrap --quiet --variant=minbase --include="$packages" "$suite" "$work/root.tar"
  else
    debootstrap --variant=minbase --include="$packages" "$suite" "$work/root" >/dev/null
    tar -C "$work/root" -cf "$work/root.tar" .
  fi
}

# What pip has to know on this machine: the authorities it trusts and how it gets out. Folders that
# pip finds packages in are left out: a build cannot see them.
pip_environment() {
  local bundle=/etc/ssl/certs/ca-certificates.crt name
  echo "ENV PIP_CERT=$bundle SSL_CERT_FILE=$bundle REQUESTS_CA_BUNDLE=$bundle"
  for name in PIP_INDEX_URL PIP_DEFAULT_TIMEOUT HTTP_PROXY HTTPS_PROXY NO_PROXY \
              http_proxy https_proxy no_proxy; do
    if [ -n "${!name:-}" ]; then echo "ENV $name=${!name}"; fi
  done
}

if ! exists "$python_image"; then
  bootstrap
  docker import "$work/root.tar" hayrunner-standin:root >/dev/null
  cp /etc/ssl/certs/ca-certificates.crt "$work/ca-certificates.crt"
  {
    echo "FROM hayrunner-standin:root"
    echo "COPY ca-certificates.crt /etc/ssl/certs/ca-certificates.crt"
    echo "RUN ln -s /usr/bin/python3 /usr/local/bin/python3 && ln -s python3 /usr/local/bin/python"
    pip_environment
  } >"$work/Dockerfile"
  rm -rf "$work/root" "$work/root.tar"
  docker build --quiet --tag "$python_image" "$work" >/dev/null
fi

if ! exists "$nats_image"; then
  mkdir "$work/nats"
  cp -L "$nats_server" "$work/nats/nats-server"
  {
    echo "FROM $python_image"
    echo "COPY nats-server /usr/local/bin/nats-server"
    echo "RUN ln -s /bin/busybox /usr/local/bin/wget"
    echo 'CMD ["nats-server"]'
  } >"$work/nats/Dockerfile"
  docker build --quiet --tag "$nats_image" "$work/nats" >/dev/null
fi
