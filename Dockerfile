# A class's image: for JupyterHub, and for marking. Nothing in it needs root, a known user, or a network:
#
#   docker build -t distlab .
#   docker run --rm --network none --user 12345:0 --memory 4g --pids-limit 512 -v "$PWD/dist/class:/home/learner/class" \
#     -w /home/learner/class distlab nbgrader autograde 05_ring_all_reduce
#
# An argument: docker build --build-arg HUB=5.2 for the version of your JupyterHub.
FROM python:3.11-slim-bookworm

ARG HUB=5.*
COPY . /tmp/distlab
RUN pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu -c /tmp/distlab/constraints.txt \
      "/tmp/distlab[lab,course,class]" "jupyterhub==$HUB" \
 && rm -rf /tmp/distlab

# The user's number may be any, as OpenShift gives one; its group is then 0. USER is for what asks for a name.
ENV HOME=/home/learner USER=learner MPLCONFIGDIR=/tmp/matplotlib
RUN mkdir -p $HOME && cd $HOME && python -m distlab course . && chgrp -R 0 $HOME && chmod -R g=u $HOME
USER 1000:0
WORKDIR /home/learner
EXPOSE 8888
CMD ["jupyterhub-singleuser", "--ip=0.0.0.0"]
