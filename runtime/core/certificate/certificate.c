/* certificate.c - certificate files: what was measured for one engine on one device, written once.
 * certificate_read.c reads them. */
#include "core/certificate/certificate.h"
#include "core/io/error.h"
#include "core/io/files.h"
#include "core/io/json.h"
#include "core/io/sha256.h"
#include "specc_judge.h"
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define LEFTOVER ".certificate-" /* what a gate that was killed while it wrote leaves behind; never read */
#define LEFTOVER_SECONDS 60
#define OPENING "{\n \"seal\": \"" /* before the seal's digits */
#define ZEROS "0000000000000000000000000000000000000000000000000000000000000000"

const char *const certificate_kinds[3] = {"none", "bounded", "bit-exact"};

identity identify_model(const struct specc_model *model) {
  identity id = {.digest = model->digest, .engine_sha256 = model->engine_sha256, .threads = model->threads};
  id.backend = model->target.name ? model->target.name : "";
  id.backend_version = model->target.version ? model->target.version : "";
  memcpy(id.device, model->device, sizeof id.device);
  memcpy(id.fingerprint, model->fingerprint, sizeof id.fingerprint);
  return id;
}

/* ------------------------------------------------------------------ writing */
static void put_string(FILE *out, const char *key, const char *text) {
  char quoted[1024];
  json_quote(text, quoted, sizeof quoted);
  fprintf(out, " \"%s\": %s,\n", key, quoted);
}

static void put_number(FILE *out, double x) {
  if (isfinite(x))
    fprintf(out, "%.17g", x);
  else
    fputs("null", out); /* JSON has no infinity; read back as one */
}

static void put_double(FILE *out, const char *key, double x) {
  fprintf(out, " \"%s\": ", key);
  put_number(out, x);
  fputs(",\n", out);
}

static void put_doubles(FILE *out, const char *key, const double *x, int32_t n) {
  fprintf(out, " \"%s\": [", key);
  for (int32_t i = 0; i < n; i++) {
    if (i) fputs(", ", out);
    put_number(out, x[i]);
  }
  fputs("],\n", out);
}

static void put_counts(FILE *out, const char *key, const int64_t *x, int32_t n) {
  fprintf(out, " \"%s\": [", key);
  for (int32_t i = 0; i < n; i++) fprintf(out, "%s%lld", i ? ", " : "", (long long)x[i]);
  fputs("],\n", out);
}

/* "[2, 3, 5]": every width of a class. */
static void put_class(FILE *out, const specc_certificate *c, int32_t number) {
  const char *between = "";
  fputc('[', out);
  for (int32_t i = 0; i < c->n_widths; i++) {
    if (c->width_class[i] != number) continue;
    fprintf(out, "%s%d", between, c->widths[i]);
    between = ", ";
  }
  fputc(']', out);
}

static int32_t find_class(const specc_certificate *c, int32_t width) {
  for (int32_t i = 0; i < c->n_widths; i++)
    if (c->widths[i] == width) return c->width_class[i];
  return -1;
}

static bool is_first_of_class(const specc_certificate *c, int32_t i) {
  for (int32_t j = 0; j < i; j++)
    if (c->width_class[j] == c->width_class[i]) return false;
  return c->width_class[i] >= 0;
}

/* The law's class first; widths whose own rows disagree stand apart. */
static void put_widths(FILE *out, const specc_certificate *c) {
  int32_t law = find_class(c, c->law_width);
  const char *between = "";
  fputs(" \"widths\": [", out);
  if (law >= 0) put_class(out, c, law), between = ", ";
  for (int32_t i = 0; i < c->n_widths; i++) {
    if (!is_first_of_class(c, i) || c->width_class[i] == law) continue;
    fputs(between, out);
    put_class(out, c, c->width_class[i]);
    between = ", ";
  }
  fputs("],\n \"unstable_widths\": ", out);
  put_class(out, c, -1);
  fputs(",\n", out);
}

static void put_reasons(FILE *out, uint32_t reasons) {
  const char *between = "";
  fputs(" \"reasons\": [", out);
  for (uint32_t bit = 1; bit; bit <<= 1) {
    if (!(reasons & bit) || !specc_reason_name(bit)) continue;
    fprintf(out, "%s\"%s\"", between, specc_reason_name(bit));
    between = ", ";
  }
  fputs("],\n", out);
}

static void put_identity(FILE *out, const identity *id) {
  put_string(out, "digest", id->digest);
  put_string(out, "engine_sha256", id->engine_sha256);
  put_string(out, "backend", id->backend);
  put_string(out, "backend_version", id->backend_version);
  put_string(out, "device", id->device);
  put_string(out, "fingerprint", id->fingerprint);
  fprintf(out, " \"threads\": %d,\n", id->threads);
}

static void put_measured(FILE *out, const specc_certificate *c) {
  put_string(out, "kind", certificate_kinds[c->kind]);
  put_widths(out, c);
  fprintf(out, " \"law_width\": %d,\n \"law_hash\": \"%016llx\",\n \"k\": %d,\n", c->law_width,
      (unsigned long long)c->law_hash, c->k);
  put_reasons(out, c->reasons);
  put_double(out, "tv_mean", c->tv_mean);
  put_double(out, "tv_max", c->tv_max);
  fprintf(out, " \"rows_compared\": %lld,\n", (long long)c->rows_compared);
  put_counts(out, "rows_different", c->rows_different, c->n_widths);
  put_doubles(out, "max_abs_diff", c->max_abs_diff, c->n_widths);
  put_doubles(out, "call_ms", c->call_ms, c->n_widths);
  put_double(out, "draft_ms", c->draft_ms);
  put_double(out, "draft_call_ms", c->draft_call_ms);
  fprintf(out, " \"calls\": %lld,\n \"tv_rows\": %lld,\n \"flips\": %lld,\n \"unrepeatable\": %lld,\n",
      (long long)c->calls, (long long)c->tv_rows, (long long)c->flips, (long long)c->unrepeatable);
  put_double(out, "flip_margin", c->flip_margin);
  put_string(out, "evidence", c->evidence);
}

static void put_certificate(FILE *out, const identity *id, const specc_certificate *c, const char *report) {
  char date[32] = "";
  time_t now = time(NULL);
  struct tm utc;
  if (gmtime_r(&now, &utc)) strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", &utc);
  fprintf(out, OPENING ZEROS "\",\n \"format\": %d,\n", CERTIFICATE_FORMAT);
  put_identity(out, id);
  put_measured(out, c);
  put_string(out, "date", date);
  fprintf(out, " \"report\": %s\n}\n", report ? report : "{}");
}

/* The file's text, malloc'd; NULL without memory. Numbers are written with a point, whatever the program's
 * locale. */
static char *write_text(const identity *id, const specc_certificate *c, const char *report, size_t *n) {
  char *text = NULL;
  locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0), before;
  FILE *out = plain ? open_memstream(&text, n) : NULL;
  if (out) {
    before = uselocale(plain);
    put_certificate(out, id, c, report);
    uselocale(before);
    bool failed = ferror(out);
    if (fclose(out) || failed) free(text), text = NULL;
  }
  if (plain) freelocale(plain);
  return text;
}

void certificate_seal(const char *text, size_t n, size_t at, char hex[65]) {
  specc_sha256 h;
  specc_sha256_begin(&h);
  specc_sha256_add(&h, text, at);
  specc_sha256_add(&h, ZEROS, SEAL_DIGITS);
  specc_sha256_add(&h, text + at + SEAL_DIGITS, n - at - SEAL_DIGITS);
  specc_sha256_end(&h, hex);
}

static int check_report(const char *report) {
  json_document document;
  if (!report) return SPECC_OK;
  int code = json_read("the certificate's report", report, strlen(report), &document);
  if (!code && document.root->kind != JSON_OBJECT)
    code = specc_error(SPECC_E_ARGUMENT, "the certificate's report is not a JSON object; pass an object");
  json_free(&document);
  return code;
}

static int check_certificate(const struct specc_model *model, const specc_certificate *c) {
  if (!c || c->kind < SPECC_CERT_NONE || c->kind > SPECC_CERT_BIT_EXACT || c->n_widths < 1 ||
      c->n_widths > SPECC_MAX_WIDTHS)
    return specc_error(
        SPECC_E_ARGUMENT, "the certificate is not one that specc_certify filled; run it first");
  if (!model->engine_sha256[0])
    return specc_error(SPECC_E_UNSUPPORTED, "a model without a bundle has no engine hash that a certificate "
                                            "could be bound to; use specc_model_set_certificate");
  return SPECC_OK;
}

/* "AMD EPYC 7B13" -> "amd-epyc-7b13" */
static void make_slug(const char *name, char slug[64]) {
  size_t n = 0;
  for (; *name && n < 63; name++) {
    unsigned char c = (unsigned char)*name;
    if (c < 128 && isalnum(c))
      slug[n++] = (char)tolower(c);
    else if (n && slug[n - 1] != '-')
      slug[n++] = '-';
  }
  while (n && slug[n - 1] == '-') n--;
  slug[n] = 0;
  if (!n) memcpy(slug, "device", 7);
}

static int cannot_write(const char *path) {
  return specc_error(
      SPECC_E_IO, "certificate %s cannot be written (%m); check the folder's space and permissions", path);
}

static bool write_all(int fd, const char *text, size_t n) {
  while (n) {
    ssize_t part = write(fd, text, n);
    if (part < 0 && errno == EINTR) continue;
    if (part <= 0) return false;
    text += part, n -= (size_t)part;
  }
  return !fchmod(fd, 0644) && !fsync(fd);
}

static void sync_folder(const char *folder) {
  int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  fsync(fd); /* the file itself is safe already; a folder that cannot be synced is no error */
  close(fd);
}

/* Temporary files of gates that were killed; young ones may be another gate's that is writing now. */
static void remove_leftovers(const char *folder) {
  DIR *entries = opendir(folder);
  if (!entries) return;
  char path[PATH_BYTES];
  struct stat found;
  for (const struct dirent *entry; (entry = readdir(entries));) {
    if (strncmp(entry->d_name, LEFTOVER, strlen(LEFTOVER)) || file_join(folder, entry->d_name, path))
      continue;
    if (!stat(path, &found) && S_ISREG(found.st_mode) && time(NULL) - found.st_mtime > LEFTOVER_SECONDS)
      unlink(path);
  }
  closedir(entries);
}

/* Whole or not at all: a temporary file beside it, synced, then renamed. */
static int write_file(const char *folder, const char *path, const char *text, size_t n) {
  char temporary[PATH_BYTES];
  int code = file_join(folder, LEFTOVER "XXXXXX", temporary);
  if (code) return code;
  if (mkdir(folder, 0777) && errno != EEXIST) return cannot_write(path);
  remove_leftovers(folder);
  int fd = mkostemp(temporary, O_CLOEXEC);
  if (fd < 0) return cannot_write(path);
  bool is_written = write_all(fd, text, n);
  is_written = !close(fd) && is_written;
  is_written = is_written && !rename(temporary, path);
  if (!is_written) {
    code = cannot_write(path);
    unlink(temporary);
    return code;
  }
  sync_folder(folder);
  return SPECC_OK;
}

static int save_certificate(const identity *id, const specc_certificate *certificate, const char *report,
    const char *folder, const char *path) {
  json_document document;
  size_t n = 0;
  char *text = write_text(id, certificate, report, &n);
  if (!text)
    return specc_error(SPECC_E_MEMORY, "no memory left to write certificate %s; close other programs", path);
  int code = json_read(path, text, n, &document); /* what is written can be read */
  json_free(&document);
  if (!code) {
    char hex[65];
    certificate_seal(text, n, strlen(OPENING), hex);
    memcpy(text + strlen(OPENING), hex, SEAL_DIGITS);
  }
  if (!code) code = write_file(folder, path, text, n);
  free(text);
  return code;
}

int specc_certificate_save(specc_model *model, const specc_certificate *certificate, const char *report,
    const char *folder, char *path, size_t n_path) {
  if (!model || !folder) return specc_error(SPECC_E_ARGUMENT, "no model or no folder was named; pass both");
  int code = check_certificate(model, certificate);
  if (!code) code = check_report(report);
  if (code) return code;
  identity id = identify_model(model);
  char slug[64], name[96], file[PATH_BYTES];
  make_slug(id.device, slug);
  snprintf(name, sizeof name, "%s-%d.json", slug, id.threads);
  code = file_join(folder, name, file);
  if (!code) code = save_certificate(&id, certificate, report, folder, file);
  if (!code && path && n_path) snprintf(path, n_path, "%s", file);
  return code;
}
