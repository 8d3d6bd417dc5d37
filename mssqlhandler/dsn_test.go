package mssqlhandler_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki/mssqlhandler"
)

// https://github.com/golang-migrate/migrate/issues/1242
func TestOpenRepeatsNothingOfTheDataSourceName(t *testing.T) {
	const (
		address   = "not a valid address: see its port, and percent-encode"
		duplicate = "a key is given twice, or a value is not escaped"
	)
	certificate := filepath.Join(t.TempDir(), "S3cret.pem")
	for dsn, says := range map[string]string{
		"":                                "is empty",
		" ":                               "is empty",
		"S3cret":                          "neither a sqlserver:// address nor a list of key=value",
		"sa:S3cret@host/app":              "neither a sqlserver:// address nor a list of key=value",
		"S3cret://sa@host":                "does not start with sqlserver://",
		"postgres://sa:S3cret@host?a=b":   "does not start with sqlserver://",
		" sqlserver://sa:S3cret@host":     "does not start with sqlserver://",
		"azuresql://sa:S3cret@host":       "give the database to New",
		"sqlserver://sa:S3cret@host:port": address,
		"sqlserver://sa:S3cret%@host":     address,
		"sqlserver://sa:S3/cret@host":     address,
		"sqlserver://sa:S3cret\n@host":    address,
		"sqlserver://sa:12/S3cret@host":   address, // a valid address of the host sa
		"sqlserver://sa:12?S3cret@host":   address,
		"sqlserver://sa:12#S3cret@host":   address,
		"sqlserver://sa:12?S3cret&4@host": address,

		"sqlserver://sa@host?password=S3cret&log=S3cret": "invalid log parameter",
		"sqlserver://sa:x@host?encrypt=S3cret":           "invalid encrypt",
		"sqlserver://sa:x@host?S3cret=1&S3cret=2":        duplicate,
		"sqlserver://sa:x@host?S3cret=1&s3CRET=2":        duplicate,
		"sqlserver://sa:x@host?user+id=S3cret":           duplicate,
		"sqlserver://host?password=a&timezone=S3cret":    "invalid timezone",
		"sqlserver://host?trustservercertificate=S3cret": "invalid trust server certificate",

		"server=host,S3cret;user id=sa":                              "invalid tcp port",
		"server=host;password=x;port=S3cret":                         "invalid tcp port",
		"server=host;pwd=x;packet size=S3cret":                       "invalid packet size",
		"server=host;password=x;connection timeout=S3cret":           "invalid connection timeout",
		"server=host;password=x;timeout=S3cret":                      "invalid connection timeout",
		"server=host;password=x;keepAlive=S3cret":                    "invalid keepAlive value",
		"server=host;password=x;failoverport=S3cret":                 "invalid failover port",
		"server=host;password=x;DisableRetry=S3cret":                 "invalid disableRetry",
		"server=host;password=x;protocol=S3cret":                     "No protocol handler",
		"server=host;password=x;dial timeout=S3cret":                 "invalid dial timeout",
		"server=host;password=x;encrypt=S3cret":                      "invalid encrypt",
		"server=host;password=x;columnencryption=S3cret":             "invalid columnencryption",
		"server=host;password=x;multisubnetfailover=S3cret":          "invalid multiSubnetFailover",
		"server=host;password=x;guid conversion=S3cret":              "invalid guid conversion",
		"server=host;password=x;epa enabled=S3cret":                  "invalid epa enabled",
		"server=host;password=S3cret;applicationintent=ReadOnly":     "database must be specified",
		"server=host;encrypt=true;certificate=" + certificate:        "failed to setup TLS: no such file or directory",
		"server=host;encrypt=true;certificate=S3cret":                "failed to setup TLS",
		"server=host;encrypt=true;servercertificate=a;certificate=b": "cannot specify both",
		"server=host;password=\"S3cret;encrypt=no\";encrypt=S3cret":  "invalid encrypt",
		"odbc:server=host;user id=sa;password={S3cret":               "unexpected end of braced value",
		"odbc:server=host;user id=sa;password={S3}cret}":             duplicate,
		"odbc:=S3cret": duplicate,
		"odbc:server=host;password={S3cret};port=S3cret":               "invalid tcp port",
		"odbc:server=host;password={};encrypt=S3cret;user id={S3cret}": "invalid encrypt",
	} {
		t.Run(dsn, func(t *testing.T) {
			h, err := mssqlhandler.Open(dsn)
			require.ErrorContains(t, err, says)
			require.Nil(t, h, "never half a handler")
			for ; err != nil; err = errors.Unwrap(err) {
				require.NotRegexp(t, `(?i)s3|cret`, err)
			}
		})
	}
}

// What each form allows in a password is not taken for a fault.
func TestOpenTakesEachFormOfADataSourceName(t *testing.T) {
	certificate := filepath.Join(t.TempDir(), "ca.pem")
	require.NoError(t, os.WriteFile(certificate, nil, 0o600))
	for _, dsn := range []string{
		"sqlserver://host",
		"sqlserver://sa:p@ss:w0rd@host/instance?app+name=a%40b",
		"sqlserver://sa:%2F%3F%23@host:1433?database=app&encrypt=true&certificate=" + certificate,
		"sqlserver://host?user id=app@host&password=p@ss",
		"server=tcp:host,1433;user id=sa;password=\"a;b@c\";database=app",
		"server=host;url=sqlserver://host",
		"odbc:server=host;user id=sa;password={a}}b;c@d}",
	} {
		h, err := mssqlhandler.Open(dsn)
		require.NoError(t, err, dsn)
		require.NoError(t, h.Close())
	}
}

func TestOpenRefusesOptionsThatCannotWork(t *testing.T) {
	h, err := mssqlhandler.Open("sqlserver://host", mssqlhandler.WithTable(""))
	require.ErrorContains(t, err, "name of the table is ")
	require.Nil(t, h)
}
