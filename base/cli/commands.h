/*
 * Every command of trainer, declared in one place: the table in trainer.c lists them, and each is defined beside the
 * code that it calls. These are declarations only, so base/ depends on no other folder.
 */
#ifndef BASE_CLI_COMMANDS_H
#define BASE_CLI_COMMANDS_H

#include "base/cli/command.h"

extern const struct command command_train;     /* trainer [train]; worker/train.c */
extern const struct command command_tune;      /* trainer tune [--space=FILE] [--trials=N]; worker/tune/ */
extern const struct command command_eval;      /* trainer eval [--checkpoint=FILE] [train_dir]; worker/export/eval.c */
extern const struct command command_explain;   /* trainer explain [--repeats=5] [train_dir [FILE]]; worker/ */
extern const struct command command_predict;   /* trainer predict [--checkpoint=FILE] FILE...; worker/export/ */
extern const struct command command_serve;     /* trainer serve [NAME=]RUN... --http=...; serve/serve.c */
extern const struct command command_inspect;   /* trainer inspect [--json] CHECKPOINT */
extern const struct command command_diff;      /* trainer diff [--json] A B */
extern const struct command command_export;    /* trainer export --format=onnx --out=FILE [CHECKPOINT] */
extern const struct command command_cluster;   /* trainer cluster [--ps=1] [--workers=2]; worker/remote/operator/ */
extern const struct command command_status;    /* trainer status [--json] */
extern const struct command command_top;       /* trainer top [--once]; worker/remote/operator/ */
extern const struct command command_health;    /* trainer health [--ready]; worker/remote/operator/ */
extern const struct command command_dashboard; /* trainer dashboard TRAIN_DIR...; worker/export/dashboard.c */
extern const struct command command_rollout;   /* trainer rollout NEW.json|status|history|abort|revert */
extern const struct command command_revoke;    /* trainer revoke worker:1|show|renew; worker/remote/operator/ */
extern const struct command
    command_profile; /* trainer profile [--out=FILE] [--json] FILE...; worker/export/profile.c */
extern const struct command command_config_check;  /* trainer config check; base/config/commands.c */
extern const struct command command_config_show;   /* trainer config show */
extern const struct command command_config_schema; /* trainer config schema */
extern const struct command command_data_info;     /* trainer data info; worker/data/ */
extern const struct command command_data_synth;    /* trainer data synth --out=DIR [--gzip] */
extern const struct command command_convert;       /* trainer convert --to=KIND --out=DIR */
extern const struct command command_devices;       /* trainer devices; worker/gpu/devices.c */
extern const struct command command_version;       /* trainer version; worker/version.c */
extern const struct command command_help; /* trainer help [topic]: a command, section, key, flag; base/cli/help.c */
extern const struct command command_completion; /* trainer completion bash|zsh|fish */
extern const struct command command_manual;     /* trainer manual [trainer-config]; base/cli/ */
extern const struct command command_sign;       /* trainer sign --key=FILE FILE...; net/keygen.c */
extern const struct command command_keygen;     /* trainer keygen ...; net/keygen.c */

#endif
