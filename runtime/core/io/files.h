/* files.h - reading and checking the files of a bundle. */
#ifndef SPECC_FILES_H
#define SPECC_FILES_H
#include <stddef.h>
#include <stdint.h>

#define PATH_BYTES 4096

/* Writes folder/name to out; SPECC_E_ARGUMENT if it is too long. */
int file_join(const char *folder, const char *name, char out[PATH_BYTES]);
/* Reads a regular file of at most limit bytes; *data is malloc'd and ends with a NUL that n does not count.
 */
int file_read(const char *path, size_t limit, char **data, size_t *n);
/* SPECC_E_FORMAT unless the file has so many bytes and this SHA-256 (NULL: any); SPECC_E_IO if it cannot be
 * read. */
int file_check(const char *path, int64_t bytes, const char *sha256);

/* id_bytes.bin: what each token id adds to the text. "SPCB", u32 version 1, u32 n, u32 offsets[n + 1], bytes.
 */
typedef struct id_bytes {
  int32_t n;
  uint32_t *offsets;    /* [n + 1] rising from 0; malloc'd */
  const uint8_t *bytes; /* inside the data that was read */
} id_bytes;
/* Reads data [n_data]; name is the file's, for the error's sentence. The caller frees offsets. */
int id_bytes_read(const char *name, const void *data, size_t n_data, id_bytes *out);
#endif
