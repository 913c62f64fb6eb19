import type { CaseReport, CheckReport } from './types.ts'

/** JUnit XML, as build servers read it. A warning passes, and is told in system-out. */
export function toJunit(report: CheckReport): string {
  const { cases, totals, startedAt, durationMs } = report
  const name = `oncekey check ${report.method} ${report.url}`
  const counts = `tests="${cases.length}" failures="${totals.fail}" errors="0" skipped="${totals.skip}" time="${seconds(durationMs)}"`
  return [
    '<?xml version="1.0" encoding="UTF-8"?>',
    `<testsuites name="oncekey check" ${counts}>`,
    `  <testsuite name="${escaped(name)}" ${counts} timestamp="${escaped(startedAt)}">`,
    ...cases.map(testcase),
    '  </testsuite>',
    '</testsuites>',
    '',
  ].join('\n')
}

function testcase(one: CaseReport): string {
  const { id, title, verdict, meaning, next, durationMs } = one
  const chapter = id.split('.', 1)[0] ?? id
  const head = `    <testcase classname="oncekey.${escaped(chapter)}" name="${escaped(`${id}: ${title}`)}" time="${seconds(durationMs)}"`
  const content: Record<CaseReport['verdict'], string> = {
    pass: '',
    fail: `<failure message="${escaped(meaning)}">${escaped(story(one))}</failure>`,
    warn: `<system-out>${escaped(`WARNING\n${story(one)}`)}</system-out>`,
    skip: `<skipped message="${escaped(`${meaning} ${next}`.trim())}"/>`,
  }
  return verdict === 'pass' ? `${head}/>` : `${head}>${content[verdict]}</testcase>`
}

function story({ sent, came, meaning, next, basis, keys }: CaseReport): string {
  return `sent: ${sent}\ncame: ${came}\nmeans: ${meaning}\nnext: ${next}\nbasis: ${basis}\nkeys: ${keys.join(', ')}`
}

function seconds(ms: number): string {
  return (ms / 1_000).toFixed(3)
}

/** XML 1.0 has no way at all to write most control characters, so they are replaced. */
function escaped(text: string): string {
  return text
    .toWellFormed()
    .replaceAll(/[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\u{10000}-\u{10ffff}]/gu, '\ufffd')
    .replaceAll('&', '&amp;')
    .replaceAll('<', '&lt;')
    .replaceAll('>', '&gt;')
    .replaceAll('"', '&quot;')
    .replaceAll("'", '&apos;')
    .replaceAll('\n', '&#10;')
    .replaceAll('\r', '&#13;')
    .replaceAll('\t', '&#9;')
}
