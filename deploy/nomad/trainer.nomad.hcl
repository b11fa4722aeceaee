# A cluster of `trainer` on machines known by name: one member on each, as listed.
#
#     trainer keygen --out=fleet.key && trainer keygen --operator=operator.key
#     nomad var put nomad/jobs/trainer fleet_key=@fleet.key operator_pub=@operator.key.pub
#     nomad job run -var 'ps=["a0"]' -var 'workers=["a1","a2","a3"]' deploy/nomad/trainer.nomad.hcl
#
# The program comes from `source`, with its checksum from a release's SHA256SUMS.

variable "ps" {
  type    = list(string)
  default = ["a0"]
}

# The first is worker 0, the chief.
variable "workers" {
  type    = list(string)
  default = ["a1", "a2", "a3"]
}

variable "source" {
  type    = string
  default = "http://files.internal/trainer"
}

variable "checksum" {
  type    = string
  default = ""
}

variable "port" {
  type    = number
  default = 2222
}

locals {
  ps_hosts     = join(",", [for host in var.ps : "${host}:${var.port}"])
  worker_hosts = join(",", [for host in var.workers : "${host}:${var.port}"])
}

job "trainer" {
  type = "batch"

  dynamic "group" {
    for_each = concat([for i, host in var.ps : { role = "ps", index = i, host = host }],
                      [for i, host in var.workers : { role = "worker", index = i, host = host }])
    labels   = ["${group.value.role}-${group.value.index}"]

    content {
      constraint {
        attribute = "${attr.unique.hostname}"
        value     = group.value.host
      }

      network {
        port "members" {
          static = var.port
        }
      }

      # Any member may die and restart; the others wait for it.
      restart {
        attempts = 1000
        interval = "1h"
        delay    = "1s"
        mode     = "delay"
      }

      # Versions of the config, and the chief's checkpoints, outlive an allocation.
      ephemeral_disk {
        size    = 1024
        sticky  = true
        migrate = true
      }

      task "trainer" {
        driver = "exec"

        artifact {
          source      = var.source
          destination = "local/trainer"
          mode        = "file"
          options {
            checksum = var.checksum
          }
        }

        template {
          destination = "${NOMAD_ALLOC_DIR}/data/config.json"
          change_mode = "noop"
          data        = <<END
{
    "fleet": {"name": "digits", "version": 1},
    "model": {"layers": [784, 500, 10]},
    "train": {"train_steps": 100000, "learning_rate": 0.1},
    "data": {"data_source": "synthetic"}
}
END
        }

        template {
          destination = "${NOMAD_SECRETS_DIR}/fleet.key"
          change_mode = "noop"
          perms       = "600"
          uid         = 65534 # who runs the tasks of this driver
          gid         = 65534
          data        = "{{ with nomadVar \"nomad/jobs/trainer\" }}{{ .fleet_key }}{{ end }}"
        }

        template {
          destination = "${NOMAD_ALLOC_DIR}/data/operator.pub"
          change_mode = "noop"
          perms       = "644"
          data        = "{{ with nomadVar \"nomad/jobs/trainer\" }}{{ .operator_pub }}{{ end }}"
        }

        config {
          command = "local/trainer"
          args = [
            "--config=${NOMAD_ALLOC_DIR}/data/config.json",
            # Nomad's folders are writable by all users; in the task's chroot there is only this one.
            "--trust_folder=${NOMAD_ALLOC_DIR}:${NOMAD_SECRETS_DIR}",
            "--fleet_key=${NOMAD_SECRETS_DIR}/fleet.key",
            "--job_name=${group.value.role}",
            "--task_index=${group.value.index}",
            "--ps_hosts=${local.ps_hosts}",
            "--worker_hosts=${local.worker_hosts}",
            "--leave_secs=60",
            "--train_dir=${group.value.role == "worker" && group.value.index == 0 ? "${NOMAD_ALLOC_DIR}/data/run" : ""}",
          ]
        }

        # SIGTERM makes the chief write a last checkpoint; a ps waits for that.
        kill_signal  = "SIGTERM"
        kill_timeout = "90s"

        resources {
          cpu    = 1000
          memory = 512
        }
      }
    }
  }
}
