package postgresname_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki/postgreshandler/internal/postgresname"
)

func TestNamesAreQuoted(t *testing.T) {
	table := postgresname.Table{Schema: "it's", Name: `a"b`}
	require.NoError(t, table.Validate())
	require.Equal(t, `"it's"."a""b"`, table.Quoted())
	require.Equal(t, `"it's"."a""b_history"`, table.QuotedHistory())
	require.Equal(t, `"loki:it's.a""b"`, table.QuotedChannel())
	require.Equal(t,
		`SELECT '"it''s"."a""b"'::regclass, '"it''s"."a""b_history"' FROM "it's"."a""b", "it's"."a""b_history", "a""b_history_ended", 'loki:it''s.a"b'`,
		table.Fill(`SELECT '"public"."loki_lockings"'::regclass, '"public"."loki_lockings_history"' FROM "public"."loki_lockings", "public"."loki_lockings_history", "loki_lockings_history_ended", 'loki:public.loki_lockings'`))
	require.Equal(t, ` E'"public"."a\\''"'`, postgresname.Table{Schema: "public", Name: `a\'`}.Fill(`'"public"."loki_lockings"'`))
}

func TestChannelsFitAndDiffer(t *testing.T) {
	long := strings.Repeat("s", 63)
	seen := make(map[string]bool)
	for _, table := range []postgresname.Table{
		postgresname.Default(), {Schema: "public", Name: "t"}, {Schema: long, Name: "t"}, {Schema: long, Name: "u"},
		{Schema: long[:20], Name: long[:38]}, {Schema: long[:20], Name: long[:37]},
	} {
		channel := table.Channel()
		require.LessOrEqual(t, len(channel), 63)
		require.False(t, seen[channel], channel)
		seen[channel] = true
	}
}

func TestNamesThatCannotWork(t *testing.T) {
	for says, table := range map[string]postgresname.Table{
		"table is empty":    {Schema: "s"},
		"schema is empty":   {Name: "t"},
		"at most 49 bytes":  {Schema: "s", Name: strings.Repeat("é", 25)},
		"at most 63 bytes":  {Schema: strings.Repeat("s", 64), Name: "t"},
		"control character": {Schema: "s", Name: "a\x00"},
		"not valid UTF-8":   {Schema: "\xff", Name: "t"},
	} {
		require.ErrorContains(t, table.Validate(), says)
	}
	require.NoError(t, postgresname.Table{Schema: strings.Repeat("s", 63), Name: strings.Repeat("t", 49)}.Validate())
}
