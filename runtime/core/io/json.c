/* json.c - the reader and the escaper of json.h. */
#include "core/io/json.h"
#include "core/io/error.h"
#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------ arena */
typedef struct block {
  struct block *before;
  size_t used, size;
  _Alignas(16) unsigned char bytes[];
} block;

static void *arena_take(void **arena, size_t n) {
  block *top = *arena;
  n = (n + 15) & ~(size_t)15;
  if (!top || top->size - top->used < n) {
    size_t size = n > 65536 ? n : 65536;
    block *fresh = malloc(sizeof *fresh + size);
    if (!fresh) return NULL;
    *fresh = (block){.before = top, .size = size};
    *arena = top = fresh;
  }
  top->used += n;
  return top->bytes + (top->used - n);
}

void json_free(json_document *document) {
  for (block *b = document->arena, *before; b; b = before) {
    before = b->before;
    free(b);
  }
  *document = (json_document){0};
}

/* ------------------------------------------------------------------ reader */
typedef struct reader {
  const char *name, *start, *p, *end;
  json_document *document;
  locale_t plain; /* the program's locale may write numbers with a comma */
  int depth, values;
} reader;

static int fault(const reader *r, const char *what) {
  int line = 1;
  for (const char *p = r->start; p < r->p && p < r->end; p++) line += *p == '\n';
  return specc_error(SPECC_E_FORMAT, "%s, line %d: %s; write the file again", r->name, line, what);
}

static int out_of_memory(const reader *r) {
  return specc_error(SPECC_E_MEMORY, "no memory left to read %s; close other programs", r->name);
}

static void skip_space(reader *r) {
  while (r->p < r->end && (*r->p == ' ' || *r->p == '\t' || *r->p == '\n' || *r->p == '\r')) r->p++;
}

static bool take(reader *r, char c) {
  if (r->p >= r->end || *r->p != c) return false;
  r->p++;
  return true;
}

static bool is_digit(const reader *r) {
  return r->p < r->end && *r->p >= '0' && *r->p <= '9';
}

/* Length of the UTF-8 sequence at p [n], 0 if it is not one: no overlong forms, no surrogates, nothing past
 * U+10FFFF. */
static size_t utf8_length(const unsigned char *p, size_t n) {
  if (n && p[0] < 0x80) return 1;
  size_t length = n == 0 || p[0] < 0xC2 ? 0 : p[0] < 0xE0 ? 2 : p[0] < 0xF0 ? 3 : p[0] < 0xF5 ? 4 : 0;
  if (length == 0 || length > n) return 0;
  unsigned char low = p[0] == 0xE0 ? 0xA0 : p[0] == 0xF0 ? 0x90 : 0x80;
  unsigned char high = p[0] == 0xED ? 0x9F : p[0] == 0xF4 ? 0x8F : 0xBF;
  if (p[1] < low || p[1] > high) return 0;
  for (size_t i = 2; i < length; i++)
    if ((p[i] & 0xC0) != 0x80) return 0;
  return length;
}

static size_t put_utf8(char *out, uint32_t c) {
  if (c < 0x80) return out[0] = (char)c, 1;
  size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
  for (size_t i = n - 1; i > 0; i--, c >>= 6) out[i] = (char)(0x80 | (c & 0x3F));
  out[0] = (char)((0xF00u >> n & 0xFF) | c);
  return n;
}

static bool read_hex4(reader *r, uint32_t *out) {
  if (r->end - r->p < 4) return false;
  *out = 0;
  for (int i = 0; i < 4; i++, r->p++) {
    char c = *r->p, lower = (char)(c | 0x20);
    int digit = c >= '0' && c <= '9' ? c - '0' : lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
    if (digit < 0) return false;
    *out = *out << 4 | (uint32_t)digit;
  }
  return true;
}

/* r->p stands behind "\u". Two escapes make one character above U+FFFF. */
static bool read_unicode(reader *r, uint32_t *c) {
  uint32_t low;
  if (!read_hex4(r, c) || *c == 0 || (*c >= 0xDC00 && *c < 0xE000)) return false;
  if (*c < 0xD800 || *c >= 0xE000) return true;
  if (!take(r, '\\') || !take(r, 'u') || !read_hex4(r, &low) || low < 0xDC00 || low >= 0xE000) return false;
  *c = 0x10000 + ((*c - 0xD800) << 10) + (low - 0xDC00);
  return true;
}

static bool read_escape(reader *r, uint32_t *c) {
  static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
  if (r->p >= r->end) return false;
  char letter = *r->p++;
  if (letter == 'u') return read_unicode(r, c);
  const char *found = letter ? strchr(from, letter) : NULL;
  if (found) *c = (uint32_t)to[found - from];
  return found != NULL;
}

/* Bytes to reserve: up to the closing quote; what escapes stand for is never longer than they are. */
static size_t string_span(const reader *r) {
  const char *p = r->p;
  while (p < r->end && *p != '"') p += *p == '\\' && r->end - p > 1 ? 2 : 1;
  return (size_t)(p - r->p);
}

static int read_string(reader *r, const char **text, int32_t *n) {
  if (!take(r, '"')) return fault(r, "a string was expected");
  char *out = arena_take(&r->document->arena, string_span(r) + 2), *start = out;
  if (!out) return out_of_memory(r);
  while (!take(r, '"')) {
    uint32_t c;
    if (r->p >= r->end) return fault(r, "the file ends inside a string");
    if ((unsigned char)*r->p < 0x20) return fault(r, "a string holds a control character");
    if (take(r, '\\')) {
      if (!read_escape(r, &c)) return fault(r, "a string holds a bad escape");
      out += put_utf8(out, c);
      continue;
    }
    size_t length = utf8_length((const unsigned char *)r->p, (size_t)(r->end - r->p));
    if (!length) return fault(r, "a string is not UTF-8");
    memcpy(out, r->p, length);
    out += length, r->p += length;
  }
  *out = 0;
  *text = start, *n = (int32_t)(out - start);
  return SPECC_OK;
}

static bool skip_digits(reader *r) {
  if (!is_digit(r)) return false;
  while (is_digit(r)) r->p++;
  return true;
}

/* Walks over a number of JSON's grammar; whole: it has neither fraction nor exponent. */
static bool skip_number(reader *r, bool *whole) {
  take(r, '-');
  if (!take(r, '0') && !skip_digits(r)) return false;
  *whole = true;
  if (take(r, '.')) {
    *whole = false;
    if (!skip_digits(r)) return false;
  }
  if (!take(r, 'e') && !take(r, 'E')) return true;
  *whole = false;
  if (!take(r, '+')) take(r, '-');
  return skip_digits(r);
}

static int read_number(reader *r, json *value) {
  const char *start = r->p;
  char digits[128];
  bool whole = false;
  if (!skip_number(r, &whole)) return fault(r, "a value was expected");
  size_t n = (size_t)(r->p - start);
  if (n >= sizeof digits) return fault(r, "a number has more than 127 characters");
  memcpy(digits, start, n);
  digits[n] = 0;
  value->kind = JSON_NUMBER;
  value->number = strtod_l(digits, NULL, r->plain);
  if (!isfinite(value->number)) return fault(r, "a number is too large");
  int before = errno;
  errno = 0;
  value->integer = whole ? strtoll(digits, NULL, 10) : 0;
  value->exact = whole && errno == 0;
  errno = before;
  return SPECC_OK;
}

static int read_word(reader *r, const char *word, enum json_kind kind, bool truth, json *value) {
  size_t n = strlen(word);
  if ((size_t)(r->end - r->p) < n || memcmp(r->p, word, n)) return fault(r, "a value was expected");
  r->p += n;
  value->kind = kind, value->truth = truth;
  return SPECC_OK;
}

static int read_value(reader *r, json **out);

static int read_key(reader *r, const json *object, const char **key) {
  int32_t n;
  skip_space(r);
  int code = read_string(r, key, &n);
  if (code) return code;
  skip_space(r);
  if (!take(r, ':')) return fault(r, "a ':' was expected");
  if (object->n >= JSON_MAX_KEYS) return fault(r, "an object has more than 512 keys");
  return json_get(object, *key) ? fault(r, "a key stands twice in one object") : SPECC_OK;
}

/* Members of an array or object; r->p stands behind the opening bracket. */
static int read_members(reader *r, json *value, char close) {
  json **link = &value->first;
  skip_space(r);
  if (take(r, close)) return SPECC_OK;
  do {
    const char *key = NULL;
    int code = value->kind == JSON_OBJECT ? read_key(r, value, &key) : SPECC_OK;
    if (!code) code = read_value(r, link);
    if (code) return code;
    (*link)->key = key;
    link = &(*link)->next;
    value->n++;
    skip_space(r);
  } while (take(r, ','));
  return take(r, close) ? SPECC_OK
                        : fault(r, close == '}' ? "a ',' or '}' was expected" : "a ',' or ']' was expected");
}

static int read_container(reader *r, json *value, enum json_kind kind) {
  if (++r->depth > JSON_MAX_DEPTH) return fault(r, "values are nested more than 64 deep");
  value->kind = kind;
  r->p++;
  int code = read_members(r, value, kind == JSON_OBJECT ? '}' : ']');
  r->depth--;
  return code;
}

static int read_value(reader *r, json **out) {
  skip_space(r);
  if (++r->values > JSON_MAX_VALUES) return fault(r, "there are more than 1000000 values");
  json *value = arena_take(&r->document->arena, sizeof *value);
  if (!value) return out_of_memory(r);
  memset(value, 0, sizeof *value);
  value->at = (size_t)(r->p - r->start);
  *out = value;
  switch (r->p < r->end ? *r->p : 0) {
  case '{':
    return read_container(r, value, JSON_OBJECT);
  case '[':
    return read_container(r, value, JSON_ARRAY);
  case '"':
    value->kind = JSON_STRING;
    return read_string(r, &value->text, &value->n);
  case 't':
    return read_word(r, "true", JSON_BOOL, true, value);
  case 'f':
    return read_word(r, "false", JSON_BOOL, false, value);
  case 'n':
    return read_word(r, "null", JSON_NULL, false, value);
  default:
    return read_number(r, value);
  }
}

static int read_all(reader *r) {
  int code = read_value(r, &r->document->root);
  if (code) return code;
  skip_space(r);
  return r->p == r->end ? SPECC_OK : fault(r, "text follows the end of the document");
}

int json_read(const char *name, const char *text, size_t n, json_document *document) {
  *document = (json_document){0};
  if (n > JSON_MAX_BYTES)
    return specc_error(SPECC_E_FORMAT,
        "%s has %zu bytes, more than the %zu that are read; write the file again", name, n, JSON_MAX_BYTES);
  reader r = {.name = name, .start = text, .p = text, .end = text + n, .document = document};
  r.plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
  if (!r.plain) return out_of_memory(&r);
  int code = read_all(&r);
  freelocale(r.plain);
  if (code) json_free(document);
  return code;
}

/* ------------------------------------------------------------------ lookups */
const json *json_get(const json *object, const char *key) {
  if (!object || object->kind != JSON_OBJECT) return NULL;
  for (const json *v = object->first; v; v = v->next)
    if (v->key && !strcmp(v->key, key)) return v;
  return NULL;
}

static const json *get_kind(const json *object, const char *key, enum json_kind kind) {
  const json *value = json_get(object, key);
  return value && value->kind == kind ? value : NULL;
}

const json *json_object(const json *object, const char *key) {
  return get_kind(object, key, JSON_OBJECT);
}
const json *json_array(const json *object, const char *key) {
  return get_kind(object, key, JSON_ARRAY);
}

const char *json_string(const json *object, const char *key) {
  const json *value = get_kind(object, key, JSON_STRING);
  return value ? value->text : NULL;
}

bool json_int(const json *value, int64_t low, int64_t high, int64_t *out) {
  if (!value || value->kind != JSON_NUMBER || !value->exact || value->integer < low || value->integer > high)
    return false;
  *out = value->integer;
  return true;
}

/* ------------------------------------------------------------------ escaper */
static uint32_t next_character(const unsigned char **p) {
  size_t n = utf8_length(*p, strnlen((const char *)*p, 4));
  uint32_t c = n < 2 ? **p : **p & (0x7Fu >> n);
  for (size_t i = 1; i < n; i++) c = c << 6 | ((*p)[i] & 0x3F);
  *p += n ? n : 1;
  return n ? c : 0xFFFD;
}

static int quote_character(uint32_t c, char out[16]) {
  if (c == '"' || c == '\\') return snprintf(out, 16, "\\%c", (char)c);
  if (c >= 0x20 && c < 0x7F) return snprintf(out, 16, "%c", (char)c);
  if (c < 0x10000) return snprintf(out, 16, "\\u%04x", c);
  c -= 0x10000;
  return snprintf(out, 16, "\\u%04x\\u%04x", 0xD800 + (c >> 10), 0xDC00 + (c & 0x3FF));
}

size_t json_quote(const char *text, char *out, size_t n_out) {
  size_t n = 0;
  char piece[16] = "\"";
  int length = 1;
  for (const unsigned char *p = (const unsigned char *)text;;
      length = quote_character(next_character(&p), piece)) {
    for (int i = 0; i < length; i++, n++)
      if (n + 1 < n_out) out[n] = piece[i];
    if (!*p) break;
  }
  if (n + 1 < n_out) out[n] = '"';
  n++;
  if (n_out) out[n < n_out ? n : n_out - 1] = 0;
  return n;
}
