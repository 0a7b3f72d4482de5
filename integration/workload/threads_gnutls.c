/* threads.c over GnuTLS. */
#define OVER_GNUTLS
#include "threads.c"
