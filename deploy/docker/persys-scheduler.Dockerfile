# The scheduler, with its ports for gRPC, HTTP, Raft, gossip and DNS. Built by make docker-build, which puts the static
# binary persys and the link beside this file.
FROM scratch
COPY persys /persys
COPY link /
COPY ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --chown=65532:65532 empty /tmp
# An engine gives a new volume the owner of the folder in the image, so these folders belong to the user.
COPY --chown=65532:65532 empty /var/lib/persys/scheduler
COPY --chown=65532:65532 empty /var/lib/persys/scheduler/admin
COPY --chown=65532:65532 empty /tokens
COPY --chown=65532:65532 empty /tokens/scheduler
COPY --chown=65532:65532 empty /tokens/agent
EXPOSE 8085 8084 8086 8088/tcp 8088/udp 8053/tcp 8053/udp
VOLUME /var/lib/persys/scheduler
USER 65532:65532
ENV SCHEDULER_DATA_DIR=/var/lib/persys/scheduler
ENTRYPOINT ["/persys-scheduler"]
