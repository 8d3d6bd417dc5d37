package mssqlhandler

import (
	"errors"
	"io/fs"
	"net/url"
	"strings"

	"github.com/microsoft/go-mssqldb/msdsn"
)

// parseDSN reads a data source name in each of the driver's three forms, and refuses what the driver would silently take
// for a server on this machine: it ignores what it does not understand.
//
// The error repeats nothing of dsn and does not wrap the driver's error, which quotes values. Any value may be a piece
// of the password: one that holds a separator and is not escaped is cut there.
func parseDSN(dsn string) (msdsn.Config, error) {
	scheme, _, isURL := strings.Cut(dsn, "://")
	isURL = isURL && !strings.ContainsAny(scheme, "=;")
	switch {
	case strings.TrimSpace(dsn) == "":
		return msdsn.Config{}, errors.New("mssqlhandler: the data source name is empty")
	case isURL && scheme == "azuresql":
		return msdsn.Config{}, errors.New("mssqlhandler: the data source name starts with azuresql://: open it with the azuread package of go-mssqldb, and give the database to New")
	case isURL && scheme != "sqlserver":
		return msdsn.Config{}, errors.New("mssqlhandler: the data source name does not start with sqlserver://")
	case isURL && isSplit(dsn):
		return msdsn.Config{}, errors.New("mssqlhandler: the data source name is not a valid address: see its port, and percent-encode each / ? # [ ] and % of the user and the password")
	case !isURL && !strings.Contains(dsn, "="):
		return msdsn.Config{}, errors.New("mssqlhandler: the data source name is neither a sqlserver:// address nor a list of key=value")
	}
	config, err := msdsn.Parse(dsn)
	if err != nil {
		return msdsn.Config{}, errors.New("mssqlhandler: the data source name cannot be used: " + withoutValues(err))
	}
	return config, nil
}

// isSplit reports whether address cannot be read, or can be only because a character of the user or the password ended
// them early: the @ behind them is in the path, in the fragment, or in the name of a parameter. The driver would dial, and
// name in its errors, what comes before.
func isSplit(address string) bool {
	u, err := url.Parse(address)
	if err != nil || strings.Contains(u.Path, "@") || strings.Contains(u.Fragment, "@") {
		return true
	}
	for parameter := range strings.SplitSeq(u.RawQuery, "&") {
		if name, _, _ := strings.Cut(parameter, "="); strings.Contains(name, "@") {
			return true
		}
	}
	return false
}

// constants are what the driver's errors begin with before they quote a value. An error that begins otherwise is not
// repeated at all.
var constants = []string{
	"invalid log parameter", "invalid timezone", "invalid tcp port", "invalid packet size", "invalid connection timeout",
	"invalid keepAlive value", "invalid failover port", "invalid disableRetry", "invalid dial timeout", "invalid encrypt",
	"invalid trust server certificate", "invalid columnencryption", "invalid multiSubnetFailover value",
	"invalid guid conversion", "invalid epa enabled value",
	"failed to setup TLS",
	"cannot specify both 'certificate' and 'serverCertificate' parameters",
	"cannot specify both 'serverCertificate' and 'hostnameincertificate' parameters",
	"database must be specified when ApplicationIntent is ReadOnly",
	"No protocol handler is available for protocol",
	"unexpected end of braced value",
}

// withoutValues is as much of a driver's error as says nothing of the data source name.
func withoutValues(err error) string {
	told := "a key is given twice, or a value is not escaped"
	for _, constant := range constants {
		if strings.HasPrefix(err.Error(), constant) {
			told = constant
		}
	}
	if file, ok := errors.AsType[*fs.PathError](err); ok { // a certificate that cannot be read
		told += ": " + file.Err.Error()
	}
	return told
}
