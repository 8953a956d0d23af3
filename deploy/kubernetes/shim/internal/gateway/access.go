package gateway

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// Access is how the shim reaches a gateway that wants to know the caller (docs/security.md). Its variables are those of
// all clients of Muster.
type Access struct {
	Token, TokenFile             string
	TLS                          bool
	CA, Certificate, Key, Server string
}

// AccessOfEnvironment reads MUSTER_TOKEN, MUSTER_TLS_CA and the others.
func AccessOfEnvironment() Access {
	wanted := strings.ToLower(os.Getenv("MUSTER_TLS"))
	return Access{
		Token:       strings.TrimSpace(os.Getenv("MUSTER_TOKEN")),
		TokenFile:   os.Getenv("MUSTER_TOKEN_FILE"),
		TLS:         wanted == "1" || wanted == "true" || wanted == "yes",
		CA:          os.Getenv("MUSTER_TLS_CA"),
		Certificate: os.Getenv("MUSTER_TLS_CERT"),
		Key:         os.Getenv("MUSTER_TLS_KEY"),
		Server:      os.Getenv("MUSTER_TLS_SERVER"),
	}
}

func (a Access) options() ([]grpc.DialOption, error) {
	if (a.Certificate == "") != (a.Key == "") {
		return nil, fmt.Errorf("MUSTER_TLS_CERT %q and MUSTER_TLS_KEY %q: expected both or none of them", a.Certificate, a.Key)
	}
	if !a.TLS && a.CA == "" && a.Certificate == "" {
		if a.Token != "" || a.TokenFile != "" {
			return nil, errors.New("MUSTER_TOKEN, MUSTER_TOKEN_FILE: expected TLS too (MUSTER_TLS, MUSTER_TLS_CA): a token travels over TLS only")
		}
		return []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}, nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: a.Server}
	if a.CA != "" {
		pem, err := os.ReadFile(a.CA)
		if err != nil {
			return nil, fmt.Errorf("MUSTER_TLS_CA: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("MUSTER_TLS_CA %s: has no certificate", a.CA)
		}
	}
	if a.Certificate != "" {
		if _, err := tls.LoadX509KeyPair(a.Certificate, a.Key); err != nil {
			return nil, fmt.Errorf("MUSTER_TLS_CERT %s, MUSTER_TLS_KEY %s: %w", a.Certificate, a.Key, err)
		}
		// The files are read for each connection: a renewed certificate needs no restart.
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(a.Certificate, a.Key)
			return &pair, err
		}
	}
	options := []grpc.DialOption{grpc.WithTransportCredentials(credentials.NewTLS(config))}
	if a.Token != "" || a.TokenFile != "" {
		options = append(options, grpc.WithPerRPCCredentials(bearer{a.Token, a.TokenFile}))
	}
	return options, nil
}

// bearer reads its file for each call: a renewed token needs no restart.
type bearer struct{ token, file string }

func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	token := b.token
	if b.file != "" {
		content, err := os.ReadFile(b.file)
		if err != nil {
			return nil, fmt.Errorf("MUSTER_TOKEN_FILE: %w", err)
		}
		token = strings.TrimSpace(string(content))
	}
	return map[string]string{"authorization": "Bearer " + token}, nil
}

func (bearer) RequireTransportSecurity() bool { return true }
