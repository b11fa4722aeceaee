/* Groups of three digits: the largest number has 26 characters, far less than the text holds. */
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
