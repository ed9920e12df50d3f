/* What the collector's tests call in place of IBM's client library: a log in the file that the connection names.
 *
 * The structures are declared from the published header, for a C compiler to lay out: a second opinion on the offsets.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { uint64_t lriType, part1, part2; } db2LRI;
typedef struct { uint32_t seconds, accuracy; } db2TimeOfLog;
typedef struct {
    db2LRI initialLRI, firstReadLRI, nextStartLRI, firstReusedLRI;
    uint32_t logRecsWritten, logBytesWritten, timeOfLRIReuse;
    db2TimeOfLog currentTimeValue;
    uint32_t futureUse1;
    uint64_t oldestInFlightLSN;
} db2ReadLogInfoStruct;
typedef struct {
    uint32_t iCallerAction;
    db2LRI *piStartLRI, *piEndLRI;
    char *poLogBuffer;
    uint32_t iLogBufferSize, iFilterOption;
    db2ReadLogInfoStruct *poReadLogInfo;
    db2LRI *piMinRequiredLRI;
} db2ReadLogStruct;
struct sqlca {
    char sqlcaid[8];
    int32_t sqlcabc, sqlcode;
    short sqlerrml;
    char sqlerrmc[70], sqlerrp[8];
    int32_t sqlerrd[6];
    char sqlwarn[11], sqlstate[5];
};

static char *log_bytes;
static size_t log_size;
static int32_t failure;

short SQLAllocHandle(short kind, int parent, int *out) { *out = kind * 10; return parent == (kind - 1) * 10 ? 0 : -1; }
short SQLFreeHandle(short kind, int handle) { return handle == kind * 10 ? 0 : -1; }
short SQLDisconnect(int handle) { return handle == 20 ? 0 : -1; }

short SQLGetDiagRec(short kind, int handle, short n, char *state, int *code, char *text, short room, short *size) {
    strcpy(state, "08001");
    return 0;
}

short SQLDriverConnect(int handle, void *window, char *in, short size, char *out, short room, short *got, unsigned short how) {
    FILE *file = strncmp(in, "DSN=", 4) || size != -3 ? NULL : fopen(in + 4, "rb");
    if (!file) return -1;
    fseek(file, 0, SEEK_END);
    log_size = (size_t)ftell(file);
    rewind(file);
    free(log_bytes);
    log_bytes = malloc(log_size + 1);
    size_t read = fread(log_bytes, 1, log_size, file);
    fclose(file);
    const char *code = getenv("FAKE_DB2_SQLCODE");
    failure = code ? atoi(code) : 0;
    return read == log_size ? 0 : -1;
}

int32_t db2ReadLog(uint32_t version, void *parameters, struct sqlca *ca) {
    db2ReadLogStruct *said = parameters;
    db2ReadLogInfoStruct *info = said->poReadLogInfo;
    if (version != 10010000 || said->iFilterOption != 1 || said->piStartLRI->lriType != 1 || said->piEndLRI->lriType != 1)
        return ca->sqlcode = -2650;
    memset(info, 0, sizeof *info);
    info->initialLRI.lriType = info->nextStartLRI.lriType = 1;
    info->nextStartLRI = *said->piStartLRI;
    if (failure) return ca->sqlcode = failure;
    if (said->iCallerAction == 3) return ca->sqlcode = 0;
    for (size_t at = 0; at < log_size;) {
        uint32_t length;
        uint64_t lri[3];
        memcpy(lri, log_bytes + at, 24);
        memcpy(&length, log_bytes + at + 56, 4);
        length += 56;
        if (lri[1] > said->piStartLRI->part1 ||
            (lri[1] == said->piStartLRI->part1 && lri[2] >= said->piStartLRI->part2)) {
            if (info->logBytesWritten + length > said->iLogBufferSize) return ca->sqlcode = 0;
            memcpy(said->poLogBuffer + info->logBytesWritten, log_bytes + at, length);
            info->logBytesWritten += length;
            info->logRecsWritten++;
            info->nextStartLRI.part1 = lri[1];
            info->nextStartLRI.part2 = lri[2] + 1;
        }
        at += length;
    }
    return ca->sqlcode = 2654;
}
