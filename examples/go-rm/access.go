package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// access is how the RM reaches a gateway that wants to know who it is (docs/security.md).
type access struct {
	useTLS                              bool
	ca, certificate, key, server, token string
}

func accessFlags() *access {
	a := &access{}
	flag.BoolVar(&a.useTLS, "tls", false, "use TLS with the system's authorities; the other TLS flags imply it")
	flag.StringVar(&a.ca, "tls-ca", "", "PEM file with the authorities of the gateway's certificate")
	flag.StringVar(&a.certificate, "tls-cert", "", "PEM file with this RM's certificate")
	flag.StringVar(&a.key, "tls-key", "", "PEM file with its key")
	flag.StringVar(&a.server, "tls-server", "", "the name in the gateway's certificate, if it is not that of the address")
	flag.StringVar(&a.token, "token-file", "", "file with a token; it travels over TLS only")
	return a
}

// options are those of grpc.NewClient.
func (a *access) options() ([]grpc.DialOption, error) {
	if !a.useTLS && a.ca == "" && a.certificate == "" && a.server == "" {
		if a.token != "" {
			return nil, errors.New("-token-file: expected TLS too (-tls, -tls-ca)")
		}
		return []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}, nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: a.server}
	if a.ca != "" {
		pem, err := os.ReadFile(a.ca)
		if err != nil {
			return nil, fmt.Errorf("-tls-ca: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("-tls-ca %s: has no certificate", a.ca)
		}
	}
	if a.certificate != "" {
		// The files are read for each connection: a renewed certificate needs no restart.
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(a.certificate, a.key)
			return &pair, err
		}
	}
	options := []grpc.DialOption{grpc.WithTransportCredentials(credentials.NewTLS(config))}
	if a.token != "" {
		options = append(options, grpc.WithPerRPCCredentials(tokenFile(a.token)))
	}
	return options, nil
}

// tokenFile is read for each call: a renewed token needs no restart.
type tokenFile string

func (file tokenFile) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	token, err := os.ReadFile(string(file))
	if err != nil {
		return nil, fmt.Errorf("-token-file: %w", err)
	}
	return map[string]string{"authorization": "Bearer " + strings.TrimSpace(string(token))}, nil
}

func (tokenFile) RequireTransportSecurity() bool { return true }
