/* json.h - a small strict JSON reader (RFC 8259) for manifests and certificates, and an escaper for writing
 * them.
 *
 * The whole document lives in one arena: json_free() ends every value and string of it at once. Strings are
 * UTF-8, checked, and end with NUL; "\u0000" is refused, so that a string is never longer than it looks.
 * Stricter than the standard: no key twice in an object, and the limits below, so that no input costs more
 * than its size suggests. */
#ifndef SPECC_JSON_H
#define SPECC_JSON_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define JSON_MAX_BYTES ((size_t)16 << 20)
#define JSON_MAX_DEPTH 64
#define JSON_MAX_VALUES 1000000
#define JSON_MAX_KEYS 512 /* in one object */

enum json_kind { JSON_NULL, JSON_BOOL, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT };

typedef struct json {
  enum json_kind kind;
  bool truth; /* BOOL */
  bool exact; /* NUMBER: written without fraction and exponent, and integer holds it */
  int32_t n;  /* STRING: bytes; ARRAY, OBJECT: members */
  int64_t integer;
  double number;
  const char *text;          /* STRING */
  const char *key;           /* name in the object around it, else NULL */
  size_t at;                 /* offset of the value's first byte in the text that was read */
  struct json *first, *next; /* ARRAY, OBJECT: members in order; next member of the one around it */
} json;

typedef struct json_document {
  json *root;
  void *arena;
} json_document;

/* Reads text [n]; name is the file's, for the error's sentence. SPECC_E_FORMAT with the line, or
 * SPECC_E_MEMORY. */
int json_read(const char *name, const char *text, size_t n, json_document *document);
void json_free(json_document *document); /* a document that was zeroed or refused is fine */

/* Lookups give NULL for a value that is missing or of another kind; object may be NULL. */
const json *json_get(const json *object, const char *key);
const json *json_object(const json *object, const char *key);
const json *json_array(const json *object, const char *key);
const char *json_string(const json *object, const char *key);
/* False unless the value is an integer from low to high. */
bool json_int(const json *value, int64_t low, int64_t high, int64_t *out);

/* Writes text as a JSON string with its quotes into out [n_out], ASCII only; broken UTF-8 becomes U+FFFD.
 * Gives the bytes needed without the final NUL, as snprintf does. */
size_t json_quote(const char *text, char *out, size_t n_out);
#endif
