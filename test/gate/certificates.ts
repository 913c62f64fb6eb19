import { execFileSync } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { later } from './scene.ts'

/** Of an authority, a server on 127.0.0.1 and a client called ann: made by openssl, and gone after the test. */
export function certificates(): Record<'ca' | 'serverKey' | 'serverCert' | 'clientKey' | 'clientCert', string> {
  const directory = mkdtempSync(join(tmpdir(), 'oncekey-pki-'))
  later(() => rmSync(directory, { recursive: true }))
  const at = (name: string): string => join(directory, name)
  const openssl = (...args: string[]): void => void execFileSync('openssl', args, { stdio: 'ignore' })
  openssl(
    'req',
    '-x509',
    '-newkey',
    'rsa:2048',
    '-nodes',
    '-keyout',
    at('ca.key'),
    '-out',
    at('ca.pem'),
    '-subj',
    '/CN=ca',
    '-days',
    '2',
  )
  writeFileSync(at('san.cnf'), 'subjectAltName=IP:127.0.0.1\n')
  for (const [name, subject] of [
    ['server', '/CN=127.0.0.1'],
    ['client', '/CN=ann'],
  ] as const) {
    openssl(
      'req',
      '-newkey',
      'rsa:2048',
      '-nodes',
      '-keyout',
      at(`${name}.key`),
      '-out',
      at(`${name}.csr`),
      '-subj',
      subject,
    )
    openssl(
      'x509',
      '-req',
      '-in',
      at(`${name}.csr`),
      '-CA',
      at('ca.pem'),
      '-CAkey',
      at('ca.key'),
      '-CAcreateserial',
      '-out',
      at(`${name}.pem`),
      '-days',
      '2',
      '-extfile',
      at('san.cnf'),
    )
  }
  const read = (name: string): string => readFileSync(at(name), 'utf8')
  return {
    ca: read('ca.pem'),
    serverKey: read('server.key'),
    serverCert: read('server.pem'),
    clientKey: read('client.key'),
    clientCert: read('client.pem'),
  }
}
