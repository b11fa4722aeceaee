/*
 * All messages, in one table. From it come the structs (message.h), the encoder and decoder (message.c), the limits
 * that frames are checked against, and the tables in PROTOCOL.md, which a test compares with this file.
 *
 *     MESSAGE(number, name, largest bulk in bytes, purpose)   followed in MESSAGE_FIELDS_name by
 *     FIELD(kind, name, limit, meaning)
 *
 * Kinds: U8 U16 U32 U64 I32 I64 F32 F64: numbers, little-endian, IEEE 754; limit: the largest allowed value of an
 * unsigned number, 0 for no limit; an I64 is a step or a count, from -2^53 to 2^53. TEXT: u32 size, that many bytes of
 * UTF-8 without zero bytes, one zero byte; limit: the largest size. RANGES: u32 count, then count times (u64 first, u32
 * count): parts of a flat vector of floats, ascending, not overlapping, none empty; limit: the largest count.
 *
 * The bulk of a message that has a `dtype` is the floats of its ranges, one after another, 4 bytes (float32) or 2
 * (bfloat16) each, or as differences from what was sent before, or packed (ps/store/codec.h).
 * Numbers are never reused; fields are only added under a new protocol version, at the end (MESSAGE_ADDITIONS). hello
 * and refused must be understood by every version: fields are only ever appended to them, and a reader skips what it
 * does not know.
 */
#ifndef NET_MESSAGE_TABLE_H
#define NET_MESSAGE_TABLE_H

#define MESSAGE_BULK (64 << 20)

/* clang-format off */
#define MESSAGE_TABLE(MESSAGE)                                                                                         \
    MESSAGE( 1, hello,         0,            "first message of the connecting side: who it is and what it runs")       \
    MESSAGE( 2, welcome,       0,            "answers hello: admitted")                                                \
    MESSAGE( 3, refused,       0,            "answers hello: why the connection ends here")                            \
    MESSAGE( 4, error,         0,            "answers any request that failed")                                        \
    MESSAGE( 5, done,          0,            "answers requests that need no other answer")                             \
    MESSAGE( 6, ping,          0,            "probes whether the peer is alive; from either side, at any time")        \
    MESSAGE( 7, pong,          0,            "answers ping")                                                           \
    MESSAGE( 8, get_model,     0,            "asks what this shard holds and whether it is initialised")               \
    MESSAGE( 9, model,         0,            "answers get_model")                                                      \
    MESSAGE(10, begin_restore, 0,            "from the chief: begins to write a new generation, named in the header")  \
    MESSAGE(11, write,         MESSAGE_BULK, "from the chief: values of one vector; between begin and end_restore")    \
    MESSAGE(12, end_restore,   0,            "from the chief: everything is written, release the waiting workers")     \
    MESSAGE(13, snapshot,      0,            "from the chief: keep a step's state for reading")                        \
    MESSAGE(14, read,          0,            "asks for values of one vector, of a snapshot or current; answered by "   \
                                             "values")                                                                 \
    MESSAGE(15, release,       0,            "from the chief: forget a snapshot")                                      \
    MESSAGE(16, pull,          0,            "asks for parameters newer than a version; answered by values")           \
    MESSAGE(17, values,        MESSAGE_BULK, "answers read and pull; in as many frames as needed, the last one "       \
                                             "flagged")                                                                \
    MESSAGE(18, push,          MESSAGE_BULK, "one step's gradient for this shard, in as many frames as needed; "       \
                                             "applied when the last one, flagged, is in")                              \
    MESSAGE(19, pushed,        MESSAGE_BULK, "answers push: its outcome and the parameters that changed; in as many "  \
                                             "frames as needed")                                                       \
    MESSAGE(20, heartbeat,     0,            "the sender is alive; its state")                                         \
    MESSAGE(21, lease,         0,            "answers heartbeat: how long the member counts as alive, and the state "  \
                                             "of the job")                                                             \
    MESSAGE(22, end_job,       0,            "from the chief: training is over")                                       \
    MESSAGE(23, leave,         0,            "the sender leaves the job")                                              \
    MESSAGE(24, get_status,    0,            "asks about the cluster; answered by status")                             \
    MESSAGE(25, status,        0,            "one member; as many frames as there are members, the last one flagged")  \
    MESSAGE(26, staged,        0,            "from another ps to the first: whose gradients of a step are complete "   \
                                             "here")                                                                   \
    MESSAGE(27, get_aggregate, 0,            "from another ps to the first: asks whose gradients make the next step; " \
                                             "answered by aggregate")                                                  \
    MESSAGE(28, aggregate,     0,            "answers get_aggregate: the decision about a step")                       \
    MESSAGE(29, get_batches,   0,            "from a worker without data to worker 0: asks for the worker's own "      \
                                             "batches; answered by batch")                                             \
    MESSAGE(30, batch,         MESSAGE_BULK, "answers get_batches: one batch per frame, the last one flagged")         \
    MESSAGE(31, propose,       262144,       "from an operator to ps 0: roll out the config in the bulk, a manifest; " \
                                             "answered by done")                                                       \
    MESSAGE(32, abort_rollout, 1024,         "from an operator to ps 0: abort the rollout that the bulk names, a "     \
                                             "signed abort; answered by done")                                         \
    MESSAGE(33, report,        0,            "from a member to ps 0: its progress in a rollout; from an operator: a "  \
                                             "query; answered by rollout")                                             \
    MESSAGE(34, rollout,       262144,       "answers report: the current order; the bulk is a manifest, or empty")    \
    MESSAGE(35, describe,      16777216,     "from a worker to ps 0: the digest of its preprocessing; from the chief " \
                                             "all of it; answered by description")                                     \
    MESSAGE(36, description,   16777216,     "answers describe: the chief's preprocessing or class names, in full if " \
                                             "the digests differ")                                                     \
    MESSAGE(37, layers,        0,            "from a worker to a ps: the layer widths that its data require; to "      \
                                             "worker 0: asks for them; answered by layers")                            \
    MESSAGE(38, offer_program, 262144,       "from an operator to ps 0: announces a program of the manifest in the "   \
                                             "bulk; answered by program")                                              \
    MESSAGE(39, put_program,   262144,       "from an operator to ps 0: bytes of the offered program; answered by "    \
                                             "program")                                                                \
    MESSAGE(40, get_program,   0,            "from a member to ps 0: asks for bytes of a program that is being "       \
                                             "rolled out; answered by program")                                        \
    MESSAGE(41, program,       262144,       "answers offer_program, put_program and get_program")                     \
    MESSAGE(42, figures,       16777216,     "from a worker to ps 0: statistics of its rows; from the chief: asks "    \
                                             "for a worker's; answered by figures")                                    \
    MESSAGE(43, rounds,        0,            "follows a worker's status: its part in rounds")                          \
    MESSAGE(44, validated,     1048576,      "from a worker: what a validation of its own rows found; answered by "    \
                                             "done")                                                                   \
    MESSAGE(45, validate,      0,            "from the chief: asks what the workers' validations of a step found; "    \
                                             "answered by validation")                                                 \
    MESSAGE(46, validation,    1048576,      "answers validate: one worker's result; as many frames as needed, the "   \
                                             "last one flagged and of no worker")                                      \
    MESSAGE(47, get_place,     0,            "from a worker without an index to ps 0: asks for a free one; answered "  \
                                             "by place")                                                               \
    MESSAGE(48, place,         0,            "answers get_place: the worker's index")                                  \
    MESSAGE(49, local,         0,            "from a worker: offers to move this connection to shared memory; "        \
                                             "answered by local_taken")                                                \
    MESSAGE(50, local_taken,   0,            "answers local: whether all that follows, in both directions, is in "     \
                                             "shared memory")                                                          \
    MESSAGE(51, revoke,        65536,        "from an operator to ps 0: the signed list of revoked keys, in the "      \
                                             "bulk; answered by done")                                                 \
    MESSAGE(52, get_revoked,   0,            "from a member or an operator to ps 0: asks for the list of revoked "     \
                                             "keys; answered by revoked")                                              \
    MESSAGE(53, revoked,       65536,        "answers get_revoked: the bulk is the list, or empty")

#define MESSAGE_FIELDS_hello(FIELD)                                                                                    \
    FIELD(U16,    version_min,     0,       "the sender's lowest protocol version")                                    \
    FIELD(U16,    version_max,     0,       "the sender's highest protocol version")                                   \
    FIELD(TEXT,   program,         64,      "name and version of the sender's program")                                \
    FIELD(U8,     role,            3,       "of the sender: 1 ps, 2 worker, 3 operator")                               \
    FIELD(I32,    index,           0,       "of the sender; -1 for operators")                                         \
    FIELD(U8,     expected_role,   3,       "role of the member that the sender expects; 0: any")                      \
    FIELD(I32,    expected_index,  0,       "its index; -1: any")                                                      \
    FIELD(U64,    incarnation,     0,       "random number of the sender's process")                                   \
    FIELD(TEXT,   cluster,         256,     "name of the cluster")                                                     \
    FIELD(U64,    fleet_version,   0,       "fleet.version of the sender's config")                                    \
    FIELD(TEXT,   digest,          64,      "of the sender's job config, in hex; empty: an operator, or a member "     \
                                            "that only reports on rollouts")                                           \
    FIELD(TEXT,   job,             65536,   "the job config as canonical JSON, so that a difference can be reported "  \
                                            "by key")

#define MESSAGE_FIELDS_welcome(FIELD)                                                                                  \
    FIELD(U16,    version,         0,       "the protocol version to use from now on")                                 \
    FIELD(TEXT,   program,         64,      "name and version of the sender's program")                                \
    FIELD(U8,     role,            3,       "of the sender")                                                           \
    FIELD(I32,    index,           0,       "of the sender")                                                           \
    FIELD(U64,    incarnation,     0,       "random number of the sender's process")                                   \
    FIELD(U64,    fleet_version,   0,       "fleet.version of the sender's config")                                    \
    FIELD(TEXT,   digest,          64,      "of the sender's job config, in hex")                                      \
    FIELD(U32,    lease_ms,        0,       "a member silent for this long counts as lost; 0: no heartbeats needed")

#define MESSAGE_FIELDS_refused(FIELD)                                                                                  \
    FIELD(U16,    reason,          0,       "see the list of reasons")                                                 \
    FIELD(TEXT,   message,         1024,    "for the user")                                                            \
    FIELD(U16,    version_min,     0,       "the sender's lowest protocol version")                                    \
    FIELD(U16,    version_max,     0,       "the sender's highest protocol version")

#define MESSAGE_FIELDS_error(FIELD)                                                                                    \
    FIELD(U16,    code,            0,       "see the list of error codes")                                             \
    FIELD(TEXT,   message,         1024,    "for the user")

#define MESSAGE_FIELDS_done(FIELD)                                                                                     \
    FIELD(I64,    global_step,     0,       "of the sender's training state; -1: it has none")

#define MESSAGE_FIELDS_ping(FIELD)                                                                                     \
    FIELD(U64,    nonce,           0,       "any number")

#define MESSAGE_FIELDS_pong(FIELD)                                                                                     \
    FIELD(U64,    nonce,           0,       "as in the ping")

#define MESSAGE_FIELDS_get_model(FIELD)                                                                                \
    FIELD(U32,    wait_ms,         600000,  "answer once the shard is initialised, or after this long in any case")

#define MESSAGE_FIELDS_model(FIELD)                                                                                    \
    FIELD(U8,     state,           2,       "of the shard: 0 uninitialised, 1 being written, 2 ready")                 \
    FIELD(U64,    float_count,     0,       "floats in the whole model's flat vector, padding included")               \
    FIELD(RANGES, ranges,          65536,   "parts of that vector held here")                                          \
    FIELD(U8,     vectors,         16,      "vectors held, a bit for each: bit 0 parameters, 1 and 2 the optimizer's " \
                                            "slots, 3 averages")                                                       \
    FIELD(I64,    global_step,     0,       "steps applied; -1 unless ready")                                          \
    FIELD(U64,    version,         0,       "number of changes of this shard within the generation")                   \
    FIELD(TEXT,   message,         1024,    "what the shard waits for, for the user; may be empty")                    \
    FIELD(U8,     retries,         10,      "how many divergences have lowered the learning rate")

#define MESSAGE_FIELDS_begin_restore(FIELD)                                                                            \
    FIELD(TEXT,   source,          4096,    "origin of the values, for logs: \"initialised\" or a checkpoint")

#define MESSAGE_FIELDS_write(FIELD)                                                                                    \
    FIELD(U8,     vector,          4,       "as in model")                                                             \
    FIELD(U8,     dtype,           1,       "of the bulk: 0 float32, 1 bfloat16")                                      \
    FIELD(RANGES, ranges,          65536,   "which floats the bulk holds")

#define MESSAGE_FIELDS_end_restore(FIELD)                                                                              \
    FIELD(I64,    global_step,     0,       "at which training continues")                                             \
    FIELD(I64,    epoch_batches,   0,       "one worker's batches per epoch, which only members with the data know; "  \
                                            "0: unknown")                                                              \
    FIELD(U8,     retries,         10,      "how many divergences have lowered the learning rate")

#define MESSAGE_FIELDS_snapshot(FIELD)                                                                                 \
    FIELD(U64,    snapshot,        0,       "its number, chosen by the chief, not 0; bit 63: an order")                \
    FIELD(I64,    at_step,         0,       "take it at this global step; -1: now")                                    \
    FIELD(U32,    wait_ms,         600000,  "give up after this long")

#define MESSAGE_FIELDS_read(FIELD)                                                                                     \
    FIELD(U8,     vector,          4,       "as in model")                                                             \
    FIELD(U64,    snapshot,        0,       "number of a snapshot; 0: the current state")                              \
    FIELD(RANGES, ranges,          65536,   "which floats; empty: all held here")

#define MESSAGE_FIELDS_release(FIELD)                                                                                  \
    FIELD(U64,    snapshot,        0,       "its number")

#define MESSAGE_FIELDS_pull(FIELD)                                                                                     \
    FIELD(U8,     dtype,           6,       "requested for the bulk of the answer, as there")                          \
    FIELD(U64,    since_version,   0,       "only changes after this version; 0: all")                                 \
    FIELD(I64,    after_step,      0,       "answer once the global step is past this one; -1: now")                   \
    FIELD(U32,    wait_ms,         600000,  "answer after this long in any case")                                      \
    FIELD(RANGES, ranges,          65536,   "which floats; empty: all held here")

#define MESSAGE_FIELDS_values(FIELD)                                                                                   \
    FIELD(U8,     vector,          4,       "as in model")                                                             \
    FIELD(U8,     dtype,           6,       "of the bulk: 0 float32, 1 bfloat16, 2 differences, 3 int8, 4 to 6 the "   \
                                            "largest")                                                                 \
    FIELD(U64,    version,         0,       "of the shard when these values were taken")                               \
    FIELD(I64,    global_step,     0,       "when these values were taken")                                            \
    FIELD(I64,    token,           0,       "synchronous training: the step to which the next push may belong; -1: "   \
                                            "none")                                                                    \
    FIELD(RANGES, ranges,          65536,   "which floats the bulk holds")

#define MESSAGE_FIELDS_push(FIELD)                                                                                     \
    FIELD(U64,    sequence,        0,       "number of the worker's push to this shard, from 1; a push sent again "    \
                                            "repeats it and counts once")                                              \
    FIELD(U64,    base_version,    0,       "version of the shard that the gradient was computed on")                  \
    FIELD(I64,    base_step,       0,       "global step that the gradient was computed at")                           \
    FIELD(I64,    token,           0,       "synchronous training: the step it belongs to; -1: none")                  \
    FIELD(I64,    local_step,      0,       "of the worker")                                                           \
    FIELD(U32,    examples,        0,                                                                                  \
          "examples that the gradient averages; of a difference, those that the worker has: its weight")               \
    FIELD(F32,    loss,            0,       "of those examples")                                                       \
    FIELD(U8,     answer_dtype,    6,       "requested for the bulk of the answer, as there")                          \
    FIELD(U8,     dtype,           6,       "of the bulk: 0 float32, 1 bfloat16, 3 int8, 4 to 6 the largest")          \
    FIELD(RANGES, ranges,          65536,   "which floats the bulk holds; floats that no frame of the push names are " \
                                            "zero")

#define MESSAGE_FIELDS_pushed(FIELD)                                                                                   \
    FIELD(U8,     outcome,         5,       "0 applied, 1 already applied, 2 staged for an aggregate, 3 stale and "    \
                                            "dropped, 4 refused: not finite, 5 not wanted: the job is over")           \
    FIELD(U64,    sequence,        0,       "of the push")                                                             \
    FIELD(U64,    version,         0,       "current version of the shard")                                            \
    FIELD(I64,    global_step,     0,       "current global step")                                                     \
    FIELD(I64,    token,           0,       "synchronous training: the step to which the next push may belong; -1: "   \
                                            "none")                                                                    \
    FIELD(U32,    staleness,       0,       "global steps between the gradient's computation and its application")     \
    FIELD(U8,     dtype,           6,       "of the bulk: 0 float32, 1 bfloat16, 2 differences, 3 int8, 4 to 6 the "   \
                                            "largest")                                                                 \
    FIELD(RANGES, ranges,          65536,   "parameters that changed since the push's base_version, as in the bulk")

#define MESSAGE_FIELDS_heartbeat(FIELD)                                                                                \
    FIELD(U8,     state,           8,       "of the sender: see the list of states")                                   \
    FIELD(I64,    global_step,     0,       "latest that the sender knows of")                                         \
    FIELD(I64,    local_step,      0,       "steps of this worker")                                                    \
    FIELD(F32,    steps_per_s,     0,       "steps of this worker")                                                    \
    FIELD(F32,    loss,            0,       "of the last step")                                                        \
    FIELD(U32,    staleness,       0,       "of the last step, in global steps")                                       \
    FIELD(U64,    retries,         0,       "connections and requests retried since the process started")              \
    FIELD(U64,    bytes_in,        0,       "on the wire since the process started")                                   \
    FIELD(U64,    bytes_out,       0,       "on the wire since the process started")                                   \
    FIELD(TEXT,   host,            255,     "name of the machine")                                                     \
    FIELD(TEXT,   device,          128,     "what the member computes on")                                             \
    FIELD(TEXT,   message,         1024,    "what the member is doing or waiting for, for the user; may be empty")     \
    FIELD(U64,    memory_bytes,    0,       "memory of the process; 0: not known")                                     \
    FIELD(F32,    cpu_percent,     0,       "of one core, by the process; NaN: not known")                             \
    FIELD(F32,    gpu_percent,     0,       "of the time that its GPUs computed; NaN: not known, or "                  \
                                            "none")

#define MESSAGE_FIELDS_lease(FIELD)                                                                                    \
    FIELD(U32,    lease_ms,        0,       "a member silent for this long counts as lost")                            \
    FIELD(U8,     job_state,       4,       "0 waiting, 1 training, 2 restoring, 3 done, 4 failed")                    \
    FIELD(I64,    global_step,     0,       "current global step; -1: none yet")                                       \
    FIELD(F32,    test_accuracy,   0,       "of a finished job; NaN before, or if there is none")                      \
    FIELD(TEXT,   message,         1024,    "for the user; may be empty")

#define MESSAGE_FIELDS_end_job(FIELD)                                                                                  \
    FIELD(U8,     job_state,       4,       "3 done, 4 failed")                                                        \
    FIELD(I64,    global_step,     0,       "last of the job")                                                         \
    FIELD(F32,    test_accuracy,   0,       "NaN if there is none")                                                    \
    FIELD(TEXT,   message,         1024,    "for the user; may be empty")

#define MESSAGE_FIELDS_leave(FIELD)                                                                                    \
    FIELD(TEXT,   message,         1024,    "reason, for the user; may be empty")

#define MESSAGE_FIELDS_get_status(FIELD)                                                                               \
    FIELD(U8,     members,         2,       "0: only the member asked; 1: all members that it knows of; 2: these, "    \
                                            "and rounds after each worker")

#define MESSAGE_FIELDS_status(FIELD)                                                                                   \
    FIELD(U8,     role,            3,       "of the member")                                                           \
    FIELD(I32,    index,           0,       "of the member")                                                           \
    FIELD(U64,    incarnation,     0,       "of the member's process; 0: never seen")                                  \
    FIELD(U8,     state,           8,       "see the list of states")                                                  \
    FIELD(U32,    silent_ms,       0,       "since the member's last message")                                    \
    FIELD(U32,    generation,      0,       "of the training state")                                                   \
    FIELD(I64,    global_step,     0,       "latest that the member knows of; -1: none")                               \
    FIELD(I64,    local_step,      0,       "of a worker: its steps; of a ps: pushes applied")                         \
    FIELD(F32,    steps_per_s,     0,       "of a worker: its steps; of a ps: pushes applied")                         \
    FIELD(F32,    loss,            0,       "of the last step; NaN: none")                                             \
    FIELD(U32,    staleness,       0,       "of the last step, in global steps")                                       \
    FIELD(U64,    dropped,         0,       "the member's gradients that were discarded as stale or not finite")       \
    FIELD(U64,    retries,         0,       "connections and requests retried since the process started")              \
    FIELD(U64,    bytes_in,        0,       "on the wire since the process started")                                   \
    FIELD(U64,    bytes_out,       0,       "on the wire since the process started")                                   \
    FIELD(U64,    fleet_version,   0,       "fleet.version of the member's config")                                    \
    FIELD(TEXT,   digest,          64,      "of the member's job config, in hex")                                      \
    FIELD(TEXT,   program,         64,      "name and version of the member's program")                                \
    FIELD(TEXT,   host,            255,     "name or address of the machine")                                          \
    FIELD(TEXT,   device,          128,     "what the member computes on")                                             \
    FIELD(TEXT,   message,         1024,    "what the member is doing or waiting for; may be empty")                   \
    FIELD(U64,    memory_bytes,    0,       "memory of the process; 0: not known")                                     \
    FIELD(F32,    cpu_percent,     0,       "of one core, by the process; NaN: not known")                             \
    FIELD(F32,    gpu_percent,     0,       "of the time that its GPUs computed; NaN: not known, or "                  \
                                            "none")                                                                    \
    FIELD(U8,     link,            3,       "how a worker's gradients come: 0 not known, 1 plain text, 2 TLS, 3 "      \
                                            "shared memory")

#define MESSAGE_FIELDS_staged(FIELD)                                                                                   \
    FIELD(I64,    step,            0,       "global step that the gradients belong to")                                \
    FIELD(RANGES, finite,          8192,    "workers whose gradients are complete, as first number and count")         \
    FIELD(RANGES, not_finite,      8192,    "workers whose gradients are refused")

#define MESSAGE_FIELDS_get_aggregate(FIELD)                                                                            \
    FIELD(I64,    step,            0,       "answer once this step is decided")                                        \
    FIELD(U32,    wait_ms,         600000,  "or, by error 6, after this long")

#define MESSAGE_FIELDS_aggregate(FIELD)                                                                                \
    FIELD(I64,    step,            0,       "global step that it produces")                                            \
    FIELD(RANGES, workers,         8192,    "workers whose gradients it averages, as first number and count")

#define MESSAGE_FIELDS_get_batches(FIELD)                                                                              \
    FIELD(I64,    first,           0,       "number of the first batch, counted over all epochs of the asking worker") \
    FIELD(U32,    count,           64,      "how many consecutive batches; 0: none, only the description of the data")

#define MESSAGE_FIELDS_batch(FIELD)                                                                                    \
    FIELD(I64,    number,          0,       "of this batch; -1: none")                                                 \
    FIELD(U32,    examples,        65536,   "in this batch")                                                           \
    FIELD(U32,    pixels,          4194304, "of each image; of a table the bytes of a row, less 2")                    \
    FIELD(U32,    total,           0,       "training images in all, from which batches are drawn")                    \
    FIELD(U32,    validation,      0,       "images held out for validation")                                          \
    FIELD(TEXT,   description,     512,     "of the data, for the user")

#define MESSAGE_FIELDS_propose(FIELD)                                                                                  \
    FIELD(F64,    healthy_s,       0,       "seconds that all members must stay healthy before the new version is "    \
                                            "final")

#define MESSAGE_FIELDS_abort_rollout(FIELD)                                                                            \
    FIELD(TEXT,   who,             256,     "who asks")

#define MESSAGE_FIELDS_describe(FIELD)                                                                                 \
    FIELD(TEXT,   digest,          64,      "of the preprocessing as JSON, in hex")

#define MESSAGE_FIELDS_description(FIELD)                                                                              \
    FIELD(TEXT,   digest,          64,      "of what the chief has sent; empty: nothing yet")

#define MESSAGE_FIELDS_layers(FIELD)                                                                                   \
    FIELD(TEXT,   units,           256,     "of each layer, as in model.layers; empty: asks")

#define MESSAGE_FIELDS_offer_program(FIELD)                                                                            \
    FIELD(TEXT,   digest,          64,      "of the offered program, in hex")

#define MESSAGE_FIELDS_put_program(FIELD)                                                                              \
    FIELD(TEXT,   digest,          64,      "of the program, in hex")                                                  \
    FIELD(U64,    offset,          0,       "of the bulk in it")

#define MESSAGE_FIELDS_get_program(FIELD)                                                                              \
    FIELD(TEXT,   digest,          64,      "of the program, in hex")                                                  \
    FIELD(U64,    offset,          0,       "of the first byte that is wanted")

#define MESSAGE_FIELDS_program(FIELD)                                                                                  \
    FIELD(U64,    offset,          0,       "of the bulk in it; to an operator: how many bytes ps 0 has, from the "    \
                                            "beginning")                                                               \
    FIELD(U32,    wait_ms,         60000,   "ask again after this long; 0: at once")

#define MESSAGE_FIELDS_figures(FIELD)                                                                                  \
    FIELD(I32,    worker,          0,       "worker they belong to; in a request with bulk it is the sender, "         \
                                            "whatever this says; in one of the chief -1 - N: forget those of "         \
                                            "worker N")

#define MESSAGE_FIELDS_rounds(FIELD)                                                                                   \
    FIELD(I32,    worker,          0,       "worker they belong to")                                                   \
    FIELD(U8,     is_asked,        1,       "1: it is selected for the current round")                                 \
    FIELD(U64,    asked,           0,       "rounds that it was selected for; 0 from a ps that does not decide on "    \
                                            "rounds")                                                                  \
    FIELD(U64,    counted,         0,       "of these, those that its difference was part of")                         \
    FIELD(U64,    late,            0,       "differences that arrived after their round was complete")                 \
    FIELD(U64,    missed,          0,       "rounds that it was selected for but that were made without it")           \
    FIELD(F32,    cosine,          0,       "of its last difference that counted to the mean of all; NaN: not known")  \
    FIELD(F32,    norm,            0,       "of that difference; NaN: not known")                                      \
    FIELD(U64,    validated,       0,       "number of its own examples in its last validation; 0: "                   \
                                            "none")                                                                    \
    FIELD(I64,    validated_step,  0,       "of that model")                                                           \
    FIELD(F32,    score,           0,       "of that model, by train.best_metric; NaN: not known")                     \
    FIELD(U8,     is_worst,        1,       "1: it is in the tenth of the workers with the worst "                     \
                                            "scores")

#define MESSAGE_FIELDS_validated(FIELD)                                                                                \
    FIELD(I64,    step,            0,       "global step of the model")                                                \
    FIELD(U64,    examples,        0,       "that it was validated on")                                                \
    FIELD(F32,    score,           0,       "by train.best_metric; NaN: not defined")                                  \
    FIELD(U8,     rises,           1,       "1: a larger score is a better one")

#define MESSAGE_FIELDS_validate(FIELD)                                                                                 \
    FIELD(I64,    step,            0,       "global step of the model")                                                \
    FIELD(U32,    wait_ms,         600000,  "wait this long for all; then answer only how many are missing; 0: "       \
                                            "answer with what there is")                                               \
    FIELD(U64,    examples,        0,       "of the chief's own, as in validated")                                     \
    FIELD(F32,    score,           0,       "likewise")                                                                \
    FIELD(U8,     rises,           1,       "likewise")

#define MESSAGE_FIELDS_validation(FIELD)                                                                               \
    FIELD(I32,    worker,          0,       "worker it belongs to; -1: none, in the last frame")                       \
    FIELD(U64,    examples,        0,       "that it was validated on")                                                \
    FIELD(F32,    score,           0,       "by train.best_metric; NaN: not defined")                                  \
    FIELD(U32,    missing,         0,       "in the last frame: workers that have the model but have not reported")

#define MESSAGE_FIELDS_report(FIELD)                                                                                   \
    FIELD(U64,    version,         0,       "of the config in force")                                                  \
    FIELD(U64,    target,          0,       "latest version that the member knows of; 0: none")                        \
    FIELD(U8,     phase,           8,       "progress with the target: 0 none, 1 staged, 2 switched, 3 went back, 4 "  \
                                            "restored, 5 failed, 6 informed too late, 7 tried, 8 saved")               \
    FIELD(U8,     ready,           1,       "1: the member takes part in training")                                    \
    FIELD(F32,    loss,            0,       "of the last step, NaN if it was not finite; below 0: none")               \
    FIELD(TEXT,   digest,          64,      "of the job config in force, in hex")                                      \
    FIELD(TEXT,   message,         1024,    "what went wrong; may be empty")                                           \
    FIELD(U64,    revoked,         0,       "number of the list of revoked keys here; 0: none")

#define MESSAGE_FIELDS_get_place(FIELD)                                                                                \
    FIELD(U64,    key,             0,       "identifies this worker, and is the same after a restart; not 0")

#define MESSAGE_FIELDS_place(FIELD)                                                                                    \
    FIELD(I32,    index,           0,       "of the worker that asked")

#define MESSAGE_FIELDS_local(FIELD)                                                                                    \
    FIELD(TEXT,   name,            32,      "of the Unix socket where the sender waits: 32 hexadecimal digits")        \
    FIELD(TEXT,   secret,          32,      "what must come with the memory, likewise")

#define MESSAGE_FIELDS_local_taken(FIELD)                                                                              \
    FIELD(TEXT,   why_not,         1024,    "empty: it is taken")

#define MESSAGE_FIELDS_rollout(FIELD)                                                                                  \
    FIELD(U8,     order,           9,       "to the member: 0 nothing, 1 stage, 2 switch, 3 go back, 4 restore, 5 "    \
                                            "try, 6 save, 7 re-exec in the target, 8 in the fallback, 9 in the "       \
                                            "version in force")                                                        \
    FIELD(U8,     state,           7,       "0 idle, 1 staging, 2 switching, 3 watching, 4 going back, 5 restoring, "  \
                                            "6 trying, 7 saving")                                                      \
    FIELD(U8,     outcome,         3,       "of the last rollout: 0 none, 1 done, 2 not begun, 3 went back")           \
    FIELD(U64,    version,         0,       "in force at ps 0")                                                        \
    FIELD(U64,    target,          0,       "of the current rollout or the last one")                                  \
    FIELD(I64,    step,            0,       "first global step at which the target is in force; 0: at once")           \
    FIELD(TEXT,   message,         1024,    "for the user")                                                            \
    FIELD(U64,    highest,         0,       "highest version ever proposed or in force")                               \
    FIELD(TEXT,   members,         65536,   "to operators: a line for each member")                                    \
    FIELD(TEXT,   job,             65536,   "to operators: the job config in force, as in hello")                      \
    FIELD(TEXT,   local,           16384,   "to operators: the machine keys that came with it; may be empty")          \
    FIELD(TEXT,   earlier,         65536,   "to operators: the job config in force before it; may be empty")           \
    FIELD(TEXT,   earlier_local,   16384,   "to operators: the machine keys that came with that")                      \
    FIELD(U64,    revoked,         0,       "number of the list of revoked keys at ps 0; 0: none")

#define MESSAGE_FIELDS_revoke(FIELD)                                                                                   \
    FIELD(U64,    number,          0,       "of the list")

#define MESSAGE_FIELDS_get_revoked(FIELD)                                                                              \
    FIELD(U64,    number,          0,       "of the list that the sender has; 0: none")

#define MESSAGE_FIELDS_revoked(FIELD)                                                                                  \
    FIELD(U64,    number,          0,       "of the list; 0: there is none")

/*
 * ADDITION(message, first of the fields that came later, protocol version that they came with): a frame of an earlier
 * version ends before them. There is one version so far.
 */
#define MESSAGE_ADDITIONS(ADDITION)
/* clang-format on */

#endif
