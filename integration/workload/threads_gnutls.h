/*
 * What threads.c asks of a TLS library, of GnuTLS: what is sent is gathered before (corked) or not, its socket takes
 * nothing every fourth time, and then the program goes on with the same bytes or with none.
 */
static gnutls_certificate_credentials_t credentials;

static void prepare(const char *certificate, const char *key)
{
	if (gnutls_certificate_allocate_credentials(&credentials) ||
	    (certificate && gnutls_certificate_set_x509_key_file(credentials, certificate, key, GNUTLS_X509_FMT_PEM)))
		fail("reading the certificate");
}

static ssize_t push(gnutls_transport_ptr_t at, const void *bytes, size_t n)
{
	struct end *end = at;

	if (!below(end, 4)) {
		gnutls_transport_set_errno(end->ssl, EAGAIN);
		return -1;
	}
	return send(end->fd, bytes, n, MSG_NOSIGNAL);
}

static ssize_t pull(gnutls_transport_ptr_t at, void *bytes, size_t n)
{
	return recv(((struct end *)at)->fd, bytes, n, 0);
}

static int begin_tls(struct end *end, int is_server)
{
	int result;

	if (gnutls_init(&end->ssl, is_server ? GNUTLS_SERVER : GNUTLS_CLIENT) ||
	    gnutls_set_default_priority(end->ssl) ||
	    gnutls_credentials_set(end->ssl, GNUTLS_CRD_CERTIFICATE, credentials))
		fail("gnutls_init");
	gnutls_transport_set_ptr(end->ssl, end);
	gnutls_transport_set_push_function(end->ssl, push);
	gnutls_transport_set_pull_function(end->ssl, pull);
	do
		result = gnutls_handshake(end->ssl);
	while (result < 0 && !gnutls_error_is_fatal(result));
	return !result;
}

static void finish_tls(struct end *end)
{
	while (gnutls_bye(end->ssl, GNUTLS_SHUT_WR) == GNUTLS_E_AGAIN)
		;
	gnutls_deinit(end->ssl);
}

static size_t receive(struct end *end, char *buffer, size_t room)
{
	ssize_t n;

	do
		n = gnutls_record_recv(end->ssl, buffer, room);
	while (n == GNUTLS_E_AGAIN || n == GNUTLS_E_INTERRUPTED);
	return n > 0 ? n : 0;
}

static int transmit(struct end *end, const char *bytes, size_t n)
{
	int is_corked = !below(end, 4);

	if (is_corked)
		gnutls_record_cork(end->ssl);
	while (n) {
		ssize_t taken = gnutls_record_send(end->ssl, bytes, n);

		while (taken == GNUTLS_E_AGAIN || taken == GNUTLS_E_INTERRUPTED)
			taken = below(end, 2) ? gnutls_record_send(end->ssl, NULL, 0) :
						gnutls_record_send(end->ssl, bytes, n);
		if (taken <= 0)
			return 0;
		bytes += taken;
		n -= taken;
	}
	return !is_corked || gnutls_record_uncork(end->ssl, GNUTLS_RECORD_WAIT) >= 0;
}
