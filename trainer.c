/*
 * The commands and roles of trainer: one table that parses the command line and documents it. Each row hands off at once
 * to the room that does the work.
 */
#include "base/cli/command.h"
#include "base/cli/help.h"
#include "base/config/commands.h"
#include "net/commands.h"
#include "worker/commands.h"
#include "worker/data/commands.h"
#include "worker/export/commands.h"
#include "worker/profile/commands.h"
#include "worker/remote/operator/commands.h"
#include "worker/version.h"

/* The first one is meant where none is named. */
/* clang-format off */
static const struct command *const commands[] = {
    &command_train,
    &command_eval,
    &command_predict,
    &command_inspect,
    &command_diff,
    &command_export,
    &command_cluster,
    &command_status,
    &command_profile,
    &command_rollout,
    &command_config_check,
    &command_config_show,
    &command_config_schema,
    &command_data_info,
    &command_data_synth,
    &command_convert,
    &command_devices,
    &command_version,
    &command_help,
    &command_keygen,
    NULL,
};
/* clang-format on */

int main(int argc, char **argv)
{
    return command_main(commands, argc, argv);
}
