/* The first bytes are from the formats' own descriptions, as file(1) has them. */
#include "worker/data/signature.h"

#include <stdint.h>
#include <string.h>
#include <strings.h>

struct known {
    size_t at, size;
    const char *bytes;
    struct signature signature;
};

#define BYTES(text) sizeof(text) - 1, text

static const struct known known[] = {
    {0, BYTES("\xff\xd8\xff"), {"a JPEG picture", "convert it to PNG"}},
    {0, BYTES("\x89PNG\r\n\x1a\n"), {"a PNG picture", "a table is needed here"}},
    {0, BYTES("GIF8"), {"a GIF picture", "convert it to PNG"}},
    {8, BYTES("WEBP"), {"a WebP picture", "convert it to PNG"}},
    {4, BYTES("ftypavif"), {"an AVIF picture", "convert it to PNG"}},
    {4, BYTES("ftyphei"), {"a HEIC picture", "convert it to PNG"}},
    {0, BYTES("II*\0"), {"a TIFF picture", "convert it to PNG"}},
    {0, BYTES("MM\0*"), {"a TIFF picture", "convert it to PNG"}},
    {0, BYTES("%PDF-"), {"a PDF document", "save its table as CSV"}},
    {0, BYTES("PAR1"), {"a Parquet file", "save it as CSV (pandas.read_parquet(...).to_csv(..., index=False))"}},
    {0, BYTES("ARROW1"), {"an Arrow file", "save it as CSV (pandas.read_feather(...).to_csv(..., index=False))"}},
    {0, BYTES("FEA1"), {"a Feather file", "save it as CSV (pandas.read_feather(...).to_csv(..., index=False))"}},
    {0, BYTES("\x89HDF\r\n\x1a\n"), {"an HDF5 file", "save its arrays by numpy.savez, or its table as CSV"}},
    {0, BYTES("MATLAB 5.0"), {"a MATLAB file", "save its arrays by numpy.savez (scipy.io.loadmat)"}},
    {0, BYTES("SQLite format 3"), {"an SQLite database", "export its table as CSV (sqlite3 -header -csv)"}},
    {0, BYTES("ORC"), {"an ORC file", "save it as CSV"}},
    {0, BYTES("Obj\1"), {"an Avro file", "save it as CSV"}},
    {0, BYTES("\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"), {"an Excel workbook of the old format", "save it as CSV"}},
    {0, BYTES("BZh"), {"packed by bzip2", "unpack it, or compress it with gzip"}},
    {0,
     BYTES("\xfd"
           "7zXZ"),
     {"packed by xz", "unpack it, or compress it with gzip"}},
    {0, BYTES("\x28\xb5\x2f\xfd"), {"packed by Zstandard", "unpack it, or compress it with gzip"}},
    {0, BYTES("7z\xbc\xaf\x27\x1c"), {"a 7-Zip archive", "unpack it"}},
    {0, BYTES("Rar!"), {"a RAR archive", "unpack it"}},
    {257, BYTES("ustar"), {"a tar archive", "unpack it"}},
    {0, BYTES("\x1f\x8b"), {"packed by gzip", "unpack it"}},
    {0,
     BYTES("\x7f"
           "ELF"),
     {"a program", "name the data"}},
    {0, BYTES("\x93NUMPY"), {"a numpy array", "a table or pictures are needed here"}},
    {0, BYTES("\x80\2}"), {"a Python pickle", "save it as CSV, or its arrays by numpy.savez"}},
    {0, BYTES("\x80\3"), {"a Python pickle", "save it as CSV, or its arrays by numpy.savez"}},
    {0, BYTES("\x80\4\x95"), {"a Python pickle", "save it as CSV, or its arrays by numpy.savez"}},
    {0, BYTES("\x80\5\x95"), {"a Python pickle", "save it as CSV, or its arrays by numpy.savez"}},
    {0, BYTES("%!PS"), {"a PostScript document", "save its table as CSV"}},
    {0, BYTES("{\\rtf"), {"an RTF document", "save its table as CSV"}},
};

static bool contains(const char *bytes, size_t size, const char *text)
{
    return memmem(bytes, size, text, strlen(text)) != NULL;
}

/* By the names of the first files in a ZIP archive. */
static const struct signature *find_archive(const char *bytes, size_t size)
{
    static const struct signature workbook = {"an Excel workbook", "save it as CSV"},
                                  sheet = {"a spreadsheet of OpenDocument", "save it as CSV"},
                                  document = {"a Word document", "save its table as CSV"},
                                  torch = {"a model or tensors of PyTorch", "save arrays by numpy.savez"},
                                  archive = {"a ZIP archive", "unpack it"};
    if (contains(bytes, size, "xl/") || contains(bytes, size, "[Content_Types].xml")) {
        return contains(bytes, size, "word/") ? &document : &workbook;
    }
    return contains(bytes, size, "opendocument.spreadsheet") ? &sheet
           : contains(bytes, size, "/data.pkl")              ? &torch
                                                             : &archive;
}

static const struct signature *find_text(const char *bytes, size_t size)
{
    static const struct signature page = {"a web page, perhaps instead of the file wanted", "download it again"},
                                  xml = {"an XML file", "save it as CSV"},
                                  lfs = {"a pointer of Git LFS instead of the file", "fetch it: git lfs pull"};
    while (size > 0 && (*bytes == ' ' || *bytes == '\n' || *bytes == '\r' || *bytes == '\t')) {
        bytes++;
        size--;
    }
    if ((size >= 14 && strncasecmp(bytes, "<!DOCTYPE html", 14) == 0) ||
        (size >= 5 && strncasecmp(bytes, "<html", 5) == 0)) {
        return &page;
    }
    return size >= 5 && memcmp(bytes, "<?xml", 5) == 0                                          ? &xml
           : size >= 42 && memcmp(bytes, "version https://git-lfs.github.com/spec/v1", 42) == 0 ? &lfs
                                                                                                : NULL;
}

const struct signature *signature_find(const void *head, size_t size)
{
    const char *bytes = head;
    if (size >= 4 && (memcmp(bytes, "PK\3\4", 4) == 0 || memcmp(bytes, "PK\5\6", 4) == 0)) {
        return find_archive(bytes, size);
    }
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (size >= known[i].at + known[i].size && memcmp(bytes + known[i].at, known[i].bytes, known[i].size) == 0) {
            return &known[i].signature;
        }
    }
    return find_text(bytes, size);
}

bool signature_say(const char *name, const void *bytes, size_t size, struct error *error)
{
    const struct signature *found = signature_find(bytes, size);
    if (found) {
        error_set(error, "%s: is %s; %s", name, found->what, found->remedy);
    }
    return found;
}
