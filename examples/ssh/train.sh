#!/bin/bash
# A training on several machines that this one reaches by ssh, one launcher on each:
#
#   HOSTS=node7:4,node8:2 ./train.sh ./train ARGUMENTS
#
# The program starts again after a failure, three times at most, and goes on from its last checkpoint.
exec lockstep run --hosts "${HOSTS:?name the machines, such as node7:4,node8:2}" --ssh "${SSH:-ssh -o BatchMode=yes}" \
  --max-restarts 3 --log-dir logs --tee 3 "$@"
