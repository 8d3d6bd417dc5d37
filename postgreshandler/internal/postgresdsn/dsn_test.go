package postgresdsn_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki/postgreshandler/internal/postgresdsn"
)

// pieces are those of a data source name that must not be repeated.
var pieces = []string{"S3cret", "Ab", "appuser", "dbhost", "appdb"}

// https://github.com/golang-migrate/migrate/issues/1242
func TestNoPartOfADataSourceNameIsRepeated(t *testing.T) {
	t.Setenv("PGSERVICEFILE", t.TempDir()+"/none")
	var dsns []string
	passwords := []string{"S3cret", "Ab@S3cret", "Ab:S3cret", "Ab/S3cret", "Ab?S3cret", "Ab#S3cret", "Ab%S3cret", "Ab[S3cret", "Ab]S3cret", "Ab S3cret", "Ab'S3cret", "Ab\\S3cret", "Ab&S3cret", "12/S3cret", "12?S3cret", "\x7fS3cret", "Ab\nS3cret", "Ab`: S3cret"}
	for _, password := range passwords {
		for _, tail := range []string{"", "?sslmode=S3cret", "?connect_timeout=S3cret", "?target_session_attrs=S3cret", "?sslrootcert=/ca.crt%20password=S3cret", "?default_query_exec_mode=S3cret", "?channel_binding=S3cret", "?require_auth=S3cret", "?S3cret", "?password=S3cret&sslmode=nope", "?service=S3cret"} {
			for _, host := range []string{"dbhost", "dbhost:S3cret", "dbhost:1,dbhost:2", "[dbhost"} {
				dsns = append(dsns, "postgres://appuser:"+password+"@"+host+"/appdb"+tail, "postgresql://"+password+"@"+host+tail)
			}
		}
		for _, format := range []string{
			"password=%s", "password = %s", "PASSWORD=%s", "password='%s", "password='%s'x", "password=%s'", "Password = '%s'", "pass=%s", "%s",
			"password=%s port=S3cret", "password = %s sslmode=S3cret", "PASSWORD=%s sslmode=nope", "password='%s' connect_timeout=S3cret",
			"sslpassword=%s sslmode=nope", "sslrootcert='/ca.crt password=%s'", "password=\"%s\" sslmode=nope", "password:%s sslmode=nope",
		} {
			dsns = append(dsns, "host=dbhost user=appuser dbname=appdb "+fmt.Sprintf(format, password), fmt.Sprintf(format, password)+" host=dbhost")
		}
	}
	refused := 0
	for _, dsn := range dsns {
		_, err := postgresdsn.Parse(dsn)
		if err == nil {
			continue
		}
		refused++
		for _, piece := range pieces {
			require.NotContains(t, err.Error(), piece, "%q", dsn)
			require.NotContains(t, fmt.Sprintf("%+v %#v", err, err), piece, "%q", dsn)
		}
		require.NoError(t, errors.Unwrap(err), "the driver's error carries the data source name")
	}
	require.Greater(t, refused, len(dsns)/2)
}

func TestParseSaysWhatIsWrong(t *testing.T) {
	for dsn, says := range map[string]string{
		"":                                    "is empty",
		"  ":                                  "is empty",
		"postgres://u:a@b@host/db":            "percent-encode",
		"postgres://u:a/b@host/db":            "percent-encode",
		"postgres://u:p@host:port/db":         "the port is no number",
		"postgres://u:p@host/db?sslmode=nope": "sslmode is not disable",
		"host=a,b port=1,2,3":                 "number of ports",
		"host=h nonsense":                     "list of key=value: put a value with a blank in it between single quotes, and a backslash before each single quote",
		"host=h connect_timeout=x":            "connect_timeout is no number",
		"host=h target_session_attrs=best":    "target_session_attrs is not any, read-write",
		"host=h sslmode=verify-full sslrootcert=/no/such/file": "whether the files can be read (open /no/such/file: no such file or directory)",
		"host=h sslcert=/no/such/file":                         "sslcert and sslkey go together",
		"host=h default_query_exec_mode=fast":                  "default_query_exec_mode is not",
	} {
		_, err := postgresdsn.Parse(dsn)
		require.ErrorContains(t, err, says, "%q", dsn)
	}
	for _, dsn := range []string{
		"postgres://", "postgres://host", "postgres://u:a%40b@host/db", "postgres://u:p@a:1,b:2/db?target_session_attrs=read-write",
		"postgres://u:p@host/db?application_name=me@here", "host=h password='a@b'", "postgres://u:p@[::1]:5432/db",
	} {
		_, err := postgresdsn.Parse(dsn)
		require.NoError(t, err, "%q", dsn)
	}
}

// A driver that was opened by the application reads the data source name at the first call, and may find a server in it.
func TestConcealWhatTheDriverRepeats(t *testing.T) {
	config, err := pgx.ParseConfig("postgres://u:Ab@S3cret@host.invalid/db")
	require.NoError(t, err)
	_, err = pgx.ConnectConfig(t.Context(), config)
	require.ErrorContains(t, err, "S3cret")
	require.NotContains(t, postgresdsn.Conceal(err).Error(), "S3cret")

	_, err = pgx.ConnectConfig(t.Context(), must(t, "postgres://u:p@127.0.0.1:1/db"))
	require.Same(t, err, postgresdsn.Conceal(err))
	require.ErrorContains(t, err, "127.0.0.1:1")
	require.NoError(t, postgresdsn.Conceal(nil))
}

func must(t *testing.T, dsn string) *pgx.ConnConfig {
	t.Helper()
	config, err := pgx.ParseConfig(dsn)
	require.NoError(t, err)
	return config
}
