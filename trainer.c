/*
 * The commands of trainer: one table that both parses and documents the command line. Each row hands off at once to the
 * module that does the work.
 */
#include "base/cli/commands.h"

/* The first one is the default. */
/* clang-format off */
static const struct command *const commands[] = {
    &command_train,
    &command_tune,
    &command_eval,
    &command_explain,
    &command_predict,
    &command_serve,
    &command_inspect,
    &command_diff,
    &command_export,
    &command_cluster,
    &command_status,
    &command_top,
    &command_health,
    &command_dashboard,
    &command_profile,
    &command_rollout,
    &command_revoke,
    &command_config_check,
    &command_config_show,
    &command_config_schema,
    &command_data_info,
    &command_data_synth,
    &command_convert,
    &command_devices,
    &command_version,
    &command_help,
    &command_completion,
    &command_manual,
    &command_keygen,
    &command_sign,
    NULL,
};
/* clang-format on */

int main(int argc, char **argv)
{
    return command_main(commands, argc, argv);
}
