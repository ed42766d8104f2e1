/* files.c - reading and checking the files of a bundle, and the id-to-bytes table. */
#include "core/io/files.h"
#include "core/io/error.h"
#include "core/io/sha256.h"
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define HASH_BYTES ((size_t)256 << 10) /* read at once: fits the second-level cache */
#define MAX_IDS (1 << 24)

int file_join(const char *folder, const char *name, char out[PATH_BYTES]) {
  int n = snprintf(out, PATH_BYTES, "%s/%s", folder, name);
  if (n >= 0 && n < PATH_BYTES) return SPECC_OK;
  return specc_error(SPECC_E_ARGUMENT,
      "the path of %.64s has more than %d bytes; move the bundle to a shorter path", name, PATH_BYTES - 1);
}

static int refuse_unreadable(const char *path) {
  return specc_error(SPECC_E_IO, "%s cannot be read (%m); check the path and its permissions", path);
}

/* Opens without waiting: a pipe in place of a file is refused, not waited for. */
static int open_regular(const char *path, int *fd, int64_t *bytes) {
  struct stat found;
  *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (*fd < 0) return refuse_unreadable(path);
  if (!fstat(*fd, &found) && S_ISREG(found.st_mode)) return *bytes = found.st_size, SPECC_OK;
  close(*fd);
  return specc_error(SPECC_E_IO, "%s is not a regular file; put the file itself there", path);
}

/* Fills data [n]; gives the bytes that came, fewer at the end of the file, -1 for an error. */
static ssize_t read_fully(int fd, void *data, size_t n) {
  size_t got = 0;
  while (got < n) {
    ssize_t part = read(fd, (char *)data + got, n - got);
    if (part < 0 && errno == EINTR) continue;
    if (part < 0) return -1;
    if (part == 0) break;
    got += (size_t)part;
  }
  return (ssize_t)got;
}

static int read_open(int fd, const char *path, size_t bytes, char **data, size_t *n) {
  char *buffer = malloc(bytes + 1);
  if (!buffer) return specc_error(SPECC_E_MEMORY, "no memory left to read %s; close other programs", path);
  ssize_t got = read_fully(fd, buffer, bytes);
  if (got < 0) return free(buffer), refuse_unreadable(path);
  buffer[got] = 0;
  *data = buffer, *n = (size_t)got;
  return SPECC_OK;
}

int file_read(const char *path, size_t limit, char **data, size_t *n) {
  int fd;
  int64_t bytes;
  int code = open_regular(path, &fd, &bytes);
  if (code) return code;
  if ((uint64_t)bytes > limit)
    code = specc_error(SPECC_E_FORMAT,
        "%s has %lld bytes, more than the %zu that are read; put the right file there", path,
        (long long)bytes, limit);
  else
    code = read_open(fd, path, (size_t)bytes, data, n);
  close(fd);
  return code;
}

static int hash_open(int fd, const char *path, char hex[65]) {
  char *buffer = malloc(HASH_BYTES);
  if (!buffer) return specc_error(SPECC_E_MEMORY, "no memory left to check %s; close other programs", path);
  specc_sha256 h;
  specc_sha256_begin(&h);
  ssize_t got;
  while ((got = read_fully(fd, buffer, HASH_BYTES)) > 0) specc_sha256_add(&h, buffer, (size_t)got);
  int code = got < 0 ? refuse_unreadable(path) : SPECC_OK;
  free(buffer);
  specc_sha256_end(&h, hex);
  return code;
}

int file_check(const char *path, int64_t bytes, const char *sha256) {
  int fd;
  int64_t found = 0;
  char hex[65];
  int code = open_regular(path, &fd, &found);
  if (code) return code;
  if (found != bytes)
    code = specc_error(SPECC_E_FORMAT,
        "%s has %lld bytes, but the manifest says %lld; copy the bundle again or build it again", path,
        (long long)found, (long long)bytes);
  else if (sha256)
    code = hash_open(fd, path, hex);
  close(fd);
  if (code || !sha256 || !strcmp(hex, sha256)) return code;
  return specc_error(SPECC_E_FORMAT,
      "%s was changed: its SHA-256 is %.12s..., but the manifest says %.12s...; copy the bundle again or "
      "build it again",
      path, hex, sha256);
}

/* ------------------------------------------------------------------ id_bytes.bin */
static uint32_t read_little_endian(const uint8_t *p) {
  return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static int refuse_table(const char *name, const char *what) {
  return specc_error(
      SPECC_E_FORMAT, "%s is not an id-to-bytes table (%s); build the bundle again", name, what);
}

int id_bytes_read(const char *name, const void *data, size_t n_data, id_bytes *out) {
  const uint8_t *p = data;
  if (n_data < 16 || memcmp(p, "SPCB", 4)) return refuse_table(name, "it does not begin with SPCB");
  if (read_little_endian(p + 4) != 1) return refuse_table(name, "its version is not 1");
  uint32_t n = read_little_endian(p + 8);
  size_t header = 12 + 4 * ((size_t)n + 1);
  if (n < 1 || n > MAX_IDS || n_data < header)
    return refuse_table(name, "it is shorter than its number of ids needs");
  uint32_t *offsets = malloc(((size_t)n + 1) * sizeof *offsets);
  if (!offsets) return specc_error(SPECC_E_MEMORY, "no memory left to read %s; close other programs", name);
  bool rising = true;
  for (size_t i = 0; i <= n; i++) {
    offsets[i] = read_little_endian(p + 12 + 4 * i);
    rising = rising && offsets[i] >= (i ? offsets[i - 1] : 0);
  }
  if (!rising || offsets[0] != 0 || offsets[n] != n_data - header)
    return free(offsets), refuse_table(name, "its offsets do not fit its bytes");
  *out = (id_bytes){.n = (int32_t)n, .offsets = offsets, .bytes = p + header};
  return SPECC_OK;
}
