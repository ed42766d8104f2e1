/* sha256.h - SHA-256 (FIPS 180-4) of a stream of bytes. */
#ifndef SPECC_SHA256_H
#define SPECC_SHA256_H
#include <stddef.h>
#include <stdint.h>

typedef struct specc_sha256 {
  uint32_t state[8];
  uint64_t length;
  uint8_t block[64];
} specc_sha256;

void specc_sha256_begin(specc_sha256 *h);
void specc_sha256_add(specc_sha256 *h, const void *data, size_t n);
/* The digest as 64 lower-case digits and a NUL. */
void specc_sha256_end(specc_sha256 *h, char hex[65]);
#endif
