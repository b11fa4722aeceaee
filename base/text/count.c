/* Groups of three digits: the largest number has 26 characters, which fit easily. */
#include "base/text/count.h"

#include <stdio.h>

const char *count_text(char text[COUNT_TEXT], int64_t number)
{
    char digits[24];
    int length = snprintf(digits, sizeof digits, "%lld", (long long)number);
    int used = 0;
    for (int i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0 && digits[i - 1] != '-') {
            text[used++] = ',';
        }
        text[used++] = digits[i];
    }
    text[used] = '\0';
    return text;
}

const char *bytes_text(char text[COUNT_TEXT], double bytes)
{
    static const char units[] = "BKMGTP";
    int unit = 0;
    while (bytes >= 1000 && unit < 5) {
        bytes /= 1024;
        unit++;
    }
    snprintf(text, COUNT_TEXT, unit == 0 || bytes >= 100 ? "%.0f%c" : "%.1f%c", bytes, units[unit]);
    return text;
}
