/* error.c - the last error of a thread. */
#include "core/io/error.h"
#include "specc_extend.h"
#include <stdarg.h>
#include <stdio.h>

static _Thread_local char last_error[1024];

int specc_error(int code, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(last_error, sizeof last_error, format, arguments);
  va_end(arguments);
  return code;
}

int specc_fail(int code, const char *message) {
  return specc_error(code, "%s", message ? message : "no message given");
}
const char *specc_last_error(void) {
  return last_error;
}
