/*
 * Parameters as numpy's .npz: an uncompressed zip archive with one .npy file per variable, named as in checkpoints.
 * Formats: numpy.lib.format, version 1.0; PKWARE's APPNOTE.TXT.
 */
#ifndef WORKER_EXPORT_NPZ_H
#define WORKER_EXPORT_NPZ_H

#include <stdbool.h>

#include "base/error.h"
#include "ps/store/model.h"

/*
 * Writes the file atomically (base/file.h). parameters: [model->float_count] in the model's layout. preprocessing: a
 * text stored as an additional array of bytes; NULL: none.
 */
bool npz_write(const char *path, const struct model *model, const float *parameters, const char *preprocessing,
               struct error *error);

#endif
